/* A program that writes the queues of a ConnectX device directly, as described by mlx5dv_init_obj.
 * Its output must be the same with every library.
 *
 *   direct DEVICE GID-INDEX      -1: no GID, on InfiniBand
 *
 * connectx.h stands before this text.
 */
enum { WRITES = 40, LENGTH = 64 };

static void query(struct ibv_context *context)
{
	struct mlx5dv_context attrs = { .comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION |
		MLX5DV_CONTEXT_MASK_SWP | MLX5DV_CONTEXT_MASK_STRIDING_RQ |
		MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS | MLX5DV_CONTEXT_MASK_DYN_BFREGS |
		MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE | MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS |
		MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK | MLX5DV_CONTEXT_MASK_DCI_STREAMS };
	struct mlx5dv_clock_info clock;

	CHECK(!mlx5dv_query_device(context, &attrs));
	/* Later releases of the header have further flags. */
	printf("device: flags 0x%llx mask 0x%llx\n", (unsigned long long)attrs.flags & 0xff,
	       (unsigned long long)attrs.comp_mask);
	printf("compression %u 0x%x parsing 0x%x 0x%x strides %u-%u %u-%u 0x%x tunnels 0x%x\n",
	       attrs.cqe_comp_caps.max_num, attrs.cqe_comp_caps.supported_format,
	       attrs.sw_parsing_caps.sw_parsing_offloads, attrs.sw_parsing_caps.supported_qpts,
	       attrs.striding_rq_caps.min_single_stride_log_num_of_bytes,
	       attrs.striding_rq_caps.max_single_stride_log_num_of_bytes,
	       attrs.striding_rq_caps.min_single_wqe_log_num_of_strides,
	       attrs.striding_rq_caps.max_single_wqe_log_num_of_strides,
	       attrs.striding_rq_caps.supported_qpts, attrs.tunnel_offloads_caps);
	printf("registers %u clock %d info %d actions 0x%x streams %u %u\n", attrs.max_dynamic_bfregs,
	       !!attrs.hca_core_clock, mlx5dv_get_clock_info(context, &clock), attrs.flow_action_flags,
	       attrs.dci_streams_caps.max_log_num_concurent, attrs.dci_streams_caps.max_log_num_errored);
}

/* Posts a write of one block, and rings the doorbell. */
static void post(struct mlx5dv_qp *dv, uint32_t qp_num, uint16_t place, struct ibv_mr *mr, uint64_t from,
		 uint64_t to, unsigned *half)
{
	uint8_t *entry = (uint8_t *)dv->sq.buf + (place & (dv->sq.wqe_cnt - 1)) * dv->sq.stride;
	struct mlx5_wqe_raddr_seg remote = { .raddr = htobe64(to), .rkey = htobe32(mr->rkey) };

	mlx5dv_set_ctrl_seg((struct mlx5_wqe_ctrl_seg *)entry, place, MLX5_OPCODE_RDMA_WRITE, 0, qp_num,
			    MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
	memcpy(entry + 16, &remote, sizeof(remote));
	mlx5dv_set_data_seg((struct mlx5_wqe_data_seg *)(entry + 32), LENGTH, mr->lkey, from);
	__sync_synchronize();
	*(volatile uint32_t *)&dv->dbrec[MLX5_SND_DBR] = htobe32((uint16_t)(place + 1));
	__sync_synchronize();
	*(volatile uint64_t *)((uint8_t *)dv->bf.reg + *half) = *(uint64_t *)entry;
	__sync_synchronize();
	*half ^= dv->bf.size;
}

/* Waits for the completion at a place of the queue. */
static struct mlx5_cqe64 *completion(struct mlx5dv_cq *dv, uint32_t place)
{
	uint8_t *entry = (uint8_t *)dv->buf + (place & (dv->cqe_cnt - 1)) * dv->cqe_size;
	struct mlx5_cqe64 *cqe = (struct mlx5_cqe64 *)(entry + dv->cqe_size - 64);
	uint8_t round = !!(place & dv->cqe_cnt), found;

	do
		found = *(volatile uint8_t *)&cqe->op_own;
	while ((found & MLX5_CQE_OWNER_MASK) != round || found >> 4 == MLX5_CQE_INVALID);
	__sync_synchronize();
	*(volatile uint32_t *)&dv->dbrec[0] = htobe32((place + 1) & 0xffffff);
	return cqe;
}

int main(int argc, char **argv)
{
	static uint8_t memory[(WRITES + 1) * LENGTH];
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 5, .max_send_sge = 1, .max_recv_sge = 3 } };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 10, .max_sge = 2 } };
	struct mlx5dv_qp dv_qp = { .comp_mask = MLX5DV_QP_MASK_UAR_MMAP_OFFSET | MLX5DV_QP_MASK_RAW_QP_HANDLES };
	struct mlx5dv_srq dv_srq = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_context_attr attr = { 0 };
	struct mlx5dv_cq dv_cq = { .comp_mask = 1 };
	struct mlx5dv_pd dv_pd = { .comp_mask = 1 };
	struct mlx5dv_obj obj = { 0 };
	struct mlx5dv_devx_uar *uar;
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;
	unsigned half = 0;

	CHECK(argc == 3 && list);
	while (*device && strcmp(ibv_get_device_name(*device), argv[1]))
		device++;
	CHECK(*device && mlx5dv_is_supported(*device));
	attr.comp_mask = 1ULL << 40;
	CHECK(!mlx5dv_open_device(*device, &attr));
	printf("unknown attributes: %d\n", errno);
	attr.comp_mask = 0;
	struct ibv_context *context = mlx5dv_open_device(*device, &attr);
	CHECK(context);
	query(context);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(srq && mr && qp);

	printf("nothing: %d\n", mlx5dv_init_obj(&obj, 0));
	obj.qp.in = qp;
	obj.qp.out = &dv_qp;
	obj.cq.in = cq;
	obj.cq.out = &dv_cq;
	obj.srq.in = srq;
	obj.srq.out = &dv_srq;
	obj.pd.in = pd;
	obj.pd.out = &dv_pd;
	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_PD));
	printf("qp: %u of %u, %u of %u, receives first %d, mask 0x%llx, %u %u %u %u\n", dv_qp.sq.wqe_cnt,
	       dv_qp.sq.stride, dv_qp.rq.wqe_cnt, dv_qp.rq.stride,
	       (uint8_t *)dv_qp.sq.buf == (uint8_t *)dv_qp.rq.buf + dv_qp.rq.wqe_cnt * dv_qp.rq.stride,
	       (unsigned long long)dv_qp.comp_mask, dv_qp.tirn, dv_qp.tisn, dv_qp.rqn, dv_qp.sqn);
	printf("cq: %u of %u, mask 0x%llx\n", dv_cq.cqe_cnt, dv_cq.cqe_size, (unsigned long long)dv_cq.comp_mask);
	printf("srq: entries of %u, %u to %u, mask 0x%llx\n", dv_srq.stride, dv_srq.head, dv_srq.tail,
	       (unsigned long long)dv_srq.comp_mask);
	CHECK(dv_pd.pdn && dv_srq.srqn && dv_cq.cqn && dv_cq.cq_uar && dv_qp.bf.reg && dv_qp.uar_mmap_offset);
	for (uint32_t at = dv_srq.head, left = dv_srq.tail; left; left--) {
		struct mlx5_wqe_srq_next_seg *next = (void *)((uint8_t *)dv_srq.buf + at * dv_srq.stride);
		at = be16toh(next->next_wqe_index);
		CHECK(at <= dv_srq.tail && (left > 1 || at == dv_srq.tail));
	}

	connect_to_itself(qp, atoi(argv[2]), IBV_ACCESS_REMOTE_WRITE);
	for (uint32_t place = 0; place < WRITES; place++) {
		uint8_t *from = memory + place * LENGTH;
		memset(from, place + 1, LENGTH);
		post(&dv_qp, qp->qp_num, place, mr, (uintptr_t)from, (uintptr_t)from + LENGTH, &half);
		struct mlx5_cqe64 *cqe = completion(&dv_cq, place);
		if (cqe->op_own >> 4 != MLX5_CQE_REQ || be16toh(cqe->wqe_counter) != place ||
		    (be32toh(cqe->sop_drop_qpn) & 0xffffff) != qp->qp_num || from[LENGTH] != place + 1) {
			fprintf(stderr, "write %u: completion 0x%x of %u\n", place, cqe->op_own,
				be16toh(cqe->wqe_counter));
			return 1;
		}
	}
	printf("%d writes\n", WRITES);

	uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
	CHECK(uar && uar->base_addr && uar->reg_addr > uar->base_addr && uar->page_id);
	mlx5dv_devx_free_uar(uar);
	printf("ends: %d", ibv_destroy_qp(qp));
	printf(" %d", ibv_dereg_mr(mr));
	printf(" %d", ibv_destroy_srq(srq));
	printf(" %d", ibv_destroy_cq(cq));
	printf(" %d", ibv_dealloc_pd(pd));
	printf(" %d\n", ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}

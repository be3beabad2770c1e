/* A program whose completion queues are compressed.
 *
 *   compressed DEVICE GID-INDEX raw       reads the queue's memory, as described by mlx5dv_init_obj;
 *                                         its output must be the same with every library
 *   compressed DEVICE GID-INDEX polled    polls, with a library that expands compressed completions
 *
 * GID-INDEX -1: no GID, on InfiniBand. connectx.h stands before this text.
 */
enum { ENTRIES = 63, LONGEST = 17, MESSAGE = 128 };

static const uint8_t forms[] = { MLX5DV_CQE_RES_FORMAT_HASH, MLX5DV_CQE_RES_FORMAT_CSUM,
				 MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX };

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t memory[2 * ENTRIES * MESSAGE];
static int gid_index;

static struct ibv_cq_ex *create(uint8_t form, uint16_t size)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = ENTRIES, .channel = channel,
		.wc_flags = IBV_WC_STANDARD_FLAGS };
	struct mlx5dv_cq_init_attr own = {
		.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE | MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
		.cqe_comp_res_format = form, .cqe_size = size };

	return mlx5dv_create_cq(context, &attr, &own);
}

/* Returns a queue pair connected to itself. */
static struct ibv_qp *connected(struct ibv_cq_ex *sends, struct ibv_cq_ex *receives)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.send_cq = ibv_cq_ex_to_cq(sends), .recv_cq = ibv_cq_ex_to_cq(receives),
		.cap = { .max_send_wr = ENTRIES, .max_recv_wr = ENTRIES, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	connect_to_itself(qp, gid_index, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	return qp;
}

/* The length of a message: too long to fit into its completion, which would not be compressed then. */
static uint32_t length(uint64_t number)
{
	return 70 + number % 24;
}

/* Posts receives, and as many sends with one doorbell. */
static void exchange(struct ibv_qp *qp, uint64_t first, int count)
{
	struct ibv_recv_wr receives[ENTRIES] = { 0 }, *bad_receive;
	struct ibv_send_wr sends[ENTRIES] = { 0 }, *bad_send;
	struct ibv_sge sges[2 * ENTRIES];

	for (int n = 0; n < count; n++) {
		sges[n] = (struct ibv_sge){ (uintptr_t)memory + n * MESSAGE, MESSAGE, mr->lkey };
		receives[n] = (struct ibv_recv_wr){ .wr_id = first + n, .sg_list = sges + n, .num_sge = 1,
						    .next = n + 1 < count ? receives + n + 1 : NULL };
		sges[ENTRIES + n] = (struct ibv_sge){ (uintptr_t)memory + (ENTRIES + n) * MESSAGE,
						      length(first + n), mr->lkey };
		sends[n] = (struct ibv_send_wr){ .wr_id = first + n, .sg_list = sges + ENTRIES + n, .num_sge = 1,
						 .opcode = IBV_WR_SEND, .next = n + 1 < count ? sends + n + 1 : NULL };
	}
	CHECK(!ibv_post_recv(qp, receives, &bad_receive));
	CHECK(!ibv_post_send(qp, sends, &bad_send));
}

/* Returns the entry at a place, as it is or once it is written. */
static uint8_t *entry(struct mlx5dv_cq *dv, uint32_t place, int wait)
{
	uint8_t *at = (uint8_t *)dv->buf + (place & (dv->cqe_cnt - 1)) * dv->cqe_size + dv->cqe_size - 64, found;

	do
		found = *(volatile uint8_t *)(at + 63);
	while (wait && ((found & 1) != !!(place & dv->cqe_cnt) || found >> 4 == MLX5_CQE_INVALID));
	__sync_synchronize();
	return at;
}

/* Prints the completions of a queue that was not read before. */
static void print(const char *name, struct ibv_cq_ex *cq, int count)
{
	struct mlx5dv_cq dv = { 0 };
	struct mlx5dv_obj obj = { .cq = { .in = ibv_cq_ex_to_cq(cq), .out = &dv } };

	CHECK(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ));
	struct mlx5_cqe64 *title = (void *)entry(&dv, 0, 1);
	printf("%s: 0x%02x of %u at %u\n", name, title->op_own, be32toh(title->byte_cnt), be16toh(title->wqe_counter));
	for (int n = 0; n < count; n++) {
		uint8_t *mini = entry(&dv, n < 8 ? 1 : n & ~7, 0) + n % 8 * 8;
		printf(" %02x%02x%02x%02x:%u", mini[0], mini[1], mini[2], mini[3], be32toh(*(uint32_t *)(mini + 4)));
	}
	printf("\n");
	for (int place = 2; place < count; place++)
		if (place % 8)
			CHECK(*(entry(&dv, place, 0) + 63) >> 4 == MLX5_CQE_INVALID);
}

static void raw(uint8_t form, uint16_t size)
{
	struct ibv_cq_ex *sends = create(form, size), *receives = create(form, size);

	CHECK(sends && receives);
	struct ibv_qp *qp = connected(sends, receives);
	exchange(qp, 0, LONGEST);
	printf("form %u of %u\n", form, size);
	print("receives", receives, LONGEST);
	print("sends", sends, LONGEST);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(sends)) &&
	      !ibv_destroy_cq(ibv_cq_ex_to_cq(receives)));
}

static void check_length(const char *way, uint32_t got, uint64_t number, int n, int count)
{
	if (got == length(number))
		return;
	fprintf(stderr, "%s, receive %d of %d: %u bytes, but message %llu has %u\n", way, n, count, got,
		(unsigned long long)number, length(number));
	exit(1);
}

/* Polls completions with consecutive numbers, by either interface. */
static void expect(struct ibv_cq_ex *cq, struct ibv_qp *qp, int is_receive, uint64_t first, int count, int reads)
{
	struct ibv_wc wcs[5];

	for (int n = 0; n < count;) {
		int most = reads ? 1 : count - n < 5 ? count - n : 5;
		int got = ibv_poll_cq(ibv_cq_ex_to_cq(cq), most, wcs);
		CHECK(got >= 0);
		for (int i = 0; i < got; i++, n++) {
			CHECK(wcs[i].status == IBV_WC_SUCCESS && wcs[i].wr_id == first + n && n < count);
			CHECK(wcs[i].qp_num == qp->qp_num);
			CHECK(wcs[i].opcode == (is_receive ? IBV_WC_RECV : IBV_WC_SEND));
			if (is_receive)
				check_length("ibv_poll_cq", wcs[i].byte_len, first + n, n, count);
		}
		struct ibv_poll_cq_attr attr = { 0 };
		if (!reads || n == count || ibv_start_poll(cq, &attr))
			continue;
		do {
			CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == first + n && n < count);
			CHECK(ibv_wc_read_qp_num(cq) == qp->qp_num);
			CHECK(ibv_wc_read_opcode(cq) == (is_receive ? IBV_WC_RECV : IBV_WC_SEND));
			if (is_receive)
				check_length("ibv_wc_read_byte_len", ibv_wc_read_byte_len(cq), first + n, n, count);
			n++;
		} while (n < count && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
}

static void polled(uint8_t form, uint16_t size)
{
	struct ibv_cq_ex *sends = create(form, size), *receives = create(form, size);
	struct ibv_cq *of_receives = ibv_cq_ex_to_cq(receives), *woken;
	uint64_t next = 1;
	void *cookie;

	CHECK(sends && receives);
	struct ibv_qp *qp = connected(sends, receives);
	for (int count = 1; count <= LONGEST; count++, next += count - 1) {
		exchange(qp, next, count);
		expect(receives, qp, 1, next, count, count % 2);
		expect(sends, qp, 0, next, count, count % 3);
	}
	/* An event for a block. */
	CHECK(!ibv_req_notify_cq(of_receives, 0));
	exchange(qp, next, 9);
	CHECK(!ibv_get_cq_event(channel, &woken, &cookie) && woken == of_receives);
	ibv_ack_cq_events(of_receives, 1);
	expect(receives, qp, 1, next, 4, 0);
	expect(sends, qp, 0, next, 9, 0);
	/* A resize with a partly polled block and an unpolled one. */
	exchange(qp, next + 9, 6);
	expect(sends, qp, 0, next + 9, 6, 1);
	CHECK(!ibv_resize_cq(of_receives, 4 * ENTRIES));
	expect(receives, qp, 1, next + 4, 11, 1);
	next += 15;
	exchange(qp, next, 11);
	expect(receives, qp, 1, next, 3, 0);
	/* The end of a queue pair with unpolled blocks. */
	expect(sends, qp, 0, next, 11, 0);
	struct ibv_qp *other = connected(sends, receives);
	exchange(other, 500, 5);
	expect(sends, other, 0, 500, 5, 0);
	CHECK(!ibv_destroy_qp(qp));
	expect(receives, other, 1, 500, 5, 0);
	CHECK(!ibv_destroy_qp(other) && !ibv_destroy_cq(ibv_cq_ex_to_cq(sends)) && !ibv_destroy_cq(of_receives));
}

int main(int argc, char **argv)
{
	struct mlx5dv_context attrs = { .comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION };
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;

	CHECK(argc == 4 && list);
	gid_index = atoi(argv[2]);
	while (*device && strcmp(ibv_get_device_name(*device), argv[1]))
		device++;
	CHECK(*device);
	context = ibv_open_device(*device);
	CHECK(context && !mlx5dv_query_device(context, &attrs));
	printf("at most %u, forms 0x%x\n", attrs.cqe_comp_caps.max_num, attrs.cqe_comp_caps.supported_format);
	channel = ibv_create_comp_channel(context);
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(channel && pd && mr);
	for (uint8_t form = 0; form < 9; form++) {
		struct ibv_cq_ex *cq;
		errno = 0;
		cq = create(form, 64);
		printf("form %u: %d\n", form, cq ? 0 : errno);
		CHECK(!cq || !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
	for (unsigned n = 0; n < 2 * sizeof(forms); n++) {
		if (strcmp(argv[3], "raw"))
			polled(forms[n / 2], n % 2 ? 128 : 64);
		else
			raw(forms[n / 2], n % 2 ? 128 : 64);
	}
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_destroy_comp_channel(channel) &&
	      !ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}

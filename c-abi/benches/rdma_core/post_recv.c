/* What `cargo xtask bench` compares posting receives with: the same calls through rdma-core. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

#define CALLS 256

static struct ibv_sge sge;

/* callgrind counts below these two, which post one receive each. */
__attribute__((noinline)) int bench_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_recv(qp, wr, &bad);
}

__attribute__((noinline)) int bench_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	return ibv_post_srq_recv(srq, wr, &bad);
}

int main(void)
{
	static char buffer[64];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

	if (!context)
		return 1;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = CALLS, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = CALLS, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	if (!mr || !srq || !qp ||
	    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return 2;
	sge = (struct ibv_sge){ .addr = (uintptr_t)buffer, .length = sizeof(buffer), .lkey = mr->lkey };
	for (int call = 0; call < CALLS; call++) {
		struct ibv_recv_wr wr = { .wr_id = call, .sg_list = &sge, .num_sge = 1 };

		if (bench_post_recv(qp, &wr) || bench_post_srq_recv(srq, &wr))
			return 3;
	}
	printf("%d\n", CALLS);
	return 0;
}

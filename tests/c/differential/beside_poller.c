/* Resets and destroys a queue pair while a poller is at its completion and holds the completion
 * queue's lock. Neither call may wait for the poller, which would never continue here. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "line %d: not true: %s (%s)\n", __LINE__, #condition,      \
				strerror(errno));                                                  \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static struct ibv_context *open_device(void)
{
	const char *wanted = getenv("VERBS_TEST_DEVICE");
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	CHECK(list && wanted);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), wanted))
			context = ibv_open_device(list[i]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* Moves a queue pair to ERR with a receive, and polls its completion without `ibv_end_poll`. */
static void start_poll_of_flushed(struct ibv_cq_ex *cq, struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;
	struct ibv_poll_cq_attr poll = { 0 };
	int polled;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_post_recv(qp, &wr, &bad));
	attr.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	while ((polled = ibv_start_poll(cq, &poll)) == ENOENT)
		;
	CHECK(polled == 0 && cq->wr_id == wr_id && cq->status == IBV_WC_WR_FLUSH_ERR);
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	CHECK(pd && cq);
	struct ibv_qp_init_attr init = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	start_poll_of_flushed(cq, qp, 1);
	CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	ibv_end_poll(cq);
	/* The queue pair after its reset. */
	start_poll_of_flushed(cq, qp, 2);
	CHECK(!ibv_destroy_qp(qp));
	ibv_end_poll(cq);
	CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &(struct ibv_wc){ 0 }) == 0);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	return 0;
}

/* C's functions on a soft device, called by a C program: see cost.rs. `cost FUNCTION` calls one of
 * the functions below CALLS times for callgrind, which counts the instructions inside it. */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 64, BATCH = 16, SLOTS = 2048, LEN = 64 };

#define MEASURED __attribute__((noinline, noclone))

static struct ibv_qp *from, *to;
static struct ibv_cq *sent, *received;
static struct ibv_sge sge;
static struct ibv_recv_wr recvs[BATCH];
static struct ibv_wc wcs[BATCH];

static void check(int ok, const char *what) {
	if (!ok) {
		perror(what);
		exit(1);
	}
}

MEASURED void cost_nothing(void) {
	__asm__ volatile("");
}

MEASURED void cost_recv_1(void) {
	struct ibv_recv_wr *bad;
	check(ibv_post_recv(to, &recvs[BATCH - 1], &bad) == 0, "ibv_post_recv");
}

MEASURED void cost_recv_16(void) {
	struct ibv_recv_wr *bad;
	check(ibv_post_recv(to, recvs, &bad) == 0, "ibv_post_recv");
}

/* An aborted batch: the cost of posting without the device's own work. */
static inline void batch(int count) {
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
	ibv_wr_start(qp);
	for (int i = 0; i < count; i++) {
		qp->wr_id = i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
	}
	ibv_wr_abort(qp);
}

MEASURED void cost_wr_1(void) {
	batch(1);
}

MEASURED void cost_wr_16(void) {
	batch(BATCH);
}

MEASURED void cost_poll_1(void) {
	check(ibv_poll_cq(received, 1, wcs) == 1, "ibv_poll_cq");
}

MEASURED void cost_poll_2(void) {
	check(ibv_poll_cq(received, 2, wcs) == 2, "ibv_poll_cq");
}

MEASURED void cost_poll_16(void) {
	check(ibv_poll_cq(received, BATCH, wcs) == BATCH, "ibv_poll_cq");
}

static struct ibv_qp *create(struct ibv_context *context, struct ibv_pd *pd) {
	struct ibv_qp_init_attr_ex init = {
		.send_cq = sent,
		.recv_cq = received,
		.cap = {.max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	check(qp != NULL, "ibv_create_qp_ex");
	return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer, const union ibv_gid *gid) {
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}},
	};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

/* Fills the queue of received messages: every completed send has delivered its message. */
static void deliver(int count) {
	struct ibv_send_wr *bad_send, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	for (int i = 0; i < count; i += BATCH)
		cost_recv_16();
	for (int done = 0; done < count;) {
		int some = count - done < BATCH ? count - done : BATCH;
		for (int i = 0; i < some; i++)
			check(ibv_post_send(from, &wr, &bad_send) == 0, "ibv_post_send");
		for (int polled = 0; polled < some;) {
			int found = ibv_poll_cq(sent, BATCH, wcs);
			check(found >= 0, "ibv_poll_cq");
			for (int i = 0; i < found; i++)
				check(wcs[i].status == IBV_WC_SUCCESS, "a send");
			polled += found;
		}
		done += some;
	}
}

static const struct {
	const char *name;
	void (*call)(void);
	int completions;
} FUNCTIONS[] = {
	{"cost_nothing", cost_nothing, 0}, {"cost_recv_1", cost_recv_1, 0}, {"cost_recv_16", cost_recv_16, 0},
	{"cost_wr_1", cost_wr_1, 0}, {"cost_wr_16", cost_wr_16, 0}, {"cost_poll_1", cost_poll_1, 1},
	{"cost_poll_2", cost_poll_2, 2}, {"cost_poll_16", cost_poll_16, BATCH},
};

int main(int argc, char **argv) {
	static char memory[LEN];
	struct ibv_device **list = ibv_get_device_list(NULL);
	check(list != NULL && list[0] != NULL, "a device");
	struct ibv_context *context = ibv_open_device(list[0]);
	check(context != NULL, "ibv_open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LEN, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = LEN, .lkey = mr->lkey};
	sent = ibv_create_cq(context, SLOTS, NULL, NULL, 0);
	received = ibv_create_cq(context, SLOTS, NULL, NULL, 0);
	check(sent != NULL && received != NULL, "ibv_create_cq");
	for (int i = 0; i < BATCH; i++)
		recvs[i] = (struct ibv_recv_wr){.next = i + 1 < BATCH ? &recvs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
	union ibv_gid gid;
	check(ibv_query_gid(context, 1, 0, &gid) == 0, "ibv_query_gid");
	from = create(context, pd);
	to = create(context, pd);
	connect_to(from, to, &gid);
	connect_to(to, from, &gid);
	for (size_t i = 0; i < sizeof(FUNCTIONS) / sizeof(FUNCTIONS[0]); i++) {
		if (argc != 2 || strcmp(argv[1], FUNCTIONS[i].name) != 0)
			continue;
		if (FUNCTIONS[i].completions > 0)
			deliver(CALLS * FUNCTIONS[i].completions);
		for (int calls = 0; calls < CALLS; calls++)
			FUNCTIONS[i].call();
		return 0;
	}
	fprintf(stderr, "cost: no such function\n");
	return 1;
}

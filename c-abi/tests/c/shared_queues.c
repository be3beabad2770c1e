/* Several threads post to the same send queues, by ibv_post_send and by ibv_wr_..., and to the same
 * receive queues. Others poll the same completion queues in both ways, while another one creates
 * and destroys objects of the same domain and queues. Every message arrives once and intact. */
#include <fcntl.h>
#include <sched.h>

#include "test.h"

enum { POSTERS = 4, SLOTS = 16, SIZE = 600, GRH = 40, QKEY = 0x11111111 };

/* The way receives are posted, and the type of the queue pairs. */
enum kind { RC, RC_SRQ, UD, XRC, KINDS };
static const char *const names[KINDS] = { "RC", "RC with SRQ", "UD", "XRC" };

static struct ibv_context *context;
static int repeats;

/* A pair of queue pairs, and the queue for its receives: one of both is null. */
struct pair {
	struct ibv_qp *sender, *receiver;
	struct ibv_srq *srq;
	uint32_t srq_num;
};

static struct {
	enum kind kind;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq;
	struct ibv_cq_ex *recv_cq;
	struct ibv_srq *srq;
	struct ibv_xrcd *xrcd;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	struct pair pairs[2];
	/* One bit for each free slot. */
	uint32_t free_sends, free_receives;
	int messages, sent, received;
	/* The number of times each message has arrived. */
	uint8_t *arrived;
	uint8_t sends[SLOTS][SIZE], receives[SLOTS][GRH + SIZE];
} s;

/* Takes a free slot, and waits until there is one. */
static unsigned take(uint32_t *slots)
{
	double deadline = seconds() + DEADLINE_SECONDS;
	for (;;) {
		uint32_t free = __atomic_load_n(slots, __ATOMIC_ACQUIRE);
		if (free && __atomic_compare_exchange_n(slots, &free, free & (free - 1), false, __ATOMIC_ACQ_REL,
							__ATOMIC_ACQUIRE))
			return (unsigned)__builtin_ctz(free);
		CHECK(seconds() < deadline);
		sched_yield();
	}
}

static void give_back(uint32_t *slots, uint64_t slot)
{
	CHECK(slot < SLOTS);
	uint32_t before = __atomic_fetch_or(slots, 1u << slot, __ATOMIC_ACQ_REL);
	CHECK(!(before & 1u << slot));
}

static struct ibv_qp *new_qp(enum ibv_qp_type type, struct ibv_srq *srq, bool is_sender)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = s.send_cq,
		.recv_cq = ibv_cq_ex_to_cq(s.recv_cq),
		.srq = srq,
		.cap = { .max_send_wr = 2 * SLOTS, .max_recv_wr = 2 * SLOTS, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.comp_mask = type == IBV_QPT_XRC_RECV ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD,
		.pd = s.pd,
		.xrcd = s.xrcd,
	};
	if (is_sender) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp != NULL);
	return qp;
}

static struct ibv_srq *new_srq(bool is_xrc)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 2 * SLOTS, .max_sge = 1 },
					     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
					     .srq_type = is_xrc ? IBV_SRQT_XRC : IBV_SRQT_BASIC, .pd = s.pd,
					     .xrcd = s.xrcd, .cq = ibv_cq_ex_to_cq(s.recv_cq) };
	if (is_xrc)
		attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	struct ibv_srq *srq = ibv_create_srq_ex(context, &attr);
	CHECK(srq != NULL);
	return srq;
}

static struct pair new_pair(void)
{
	static const enum ibv_qp_type senders[KINDS] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_SEND };
	struct pair pair = { .srq = s.srq };
	pair.sender = new_qp(senders[s.kind], NULL, true);
	pair.receiver = new_qp(s.kind == XRC ? IBV_QPT_XRC_RECV : senders[s.kind], s.srq, false);
	if (s.kind == XRC) {
		pair.srq = new_srq(true);
		IS(ibv_get_srq_num(pair.srq, &pair.srq_num), 0);
	}
	connect_pair(pair.sender, pair.receiver);
	return pair;
}

static void receive(const struct pair *pair, unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)s.receives[slot], sizeof s.receives[slot], s.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	IS(pair->srq ? ibv_post_srq_recv(pair->srq, &wr, &bad) : ibv_post_recv(pair->receiver, &wr, &bad), 0);
}

static void send_old(const struct pair *pair, unsigned slot, const struct ibv_sge *sge, uint32_t number)
{
	struct ibv_send_wr wr = { .wr_id = slot, .sg_list = (struct ibv_sge *)sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
				  .imm_data = htobe32(number) }, *bad;
	if (s.kind == UD) {
		wr.wr.ud.ah = s.ah;
		wr.wr.ud.remote_qpn = pair->receiver->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	if (s.kind == XRC)
		wr.qp_type.xrc.remote_srqn = pair->srq_num;
	IS(ibv_post_send(pair->sender, &wr, &bad), 0);
}

static void send_new(const struct pair *pair, unsigned slot, const struct ibv_sge *sge, uint32_t number)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair->sender);
	ibv_wr_start(ex);
	ex->wr_id = slot;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(ex, htobe32(number));
	if (s.kind == UD)
		ibv_wr_set_ud_addr(ex, s.ah, pair->receiver->qp_num, QKEY);
	if (s.kind == XRC)
		ibv_wr_set_xrc_srqn(ex, pair->srq_num);
	ibv_wr_set_sge(ex, sge->lkey, sge->addr, sge->length);
	IS(ibv_wr_complete(ex), 0);
}

/* Posts a receive and a send for each message, numbered uniquely. */
static void *poster(void *argument)
{
	uint32_t own = (uint32_t)(uintptr_t)argument;
	for (uint32_t number = own; number < (uint32_t)s.messages; number += POSTERS) {
		const struct pair *pair = &s.pairs[number / POSTERS % 2];
		receive(pair, take(&s.free_receives));
		unsigned slot = take(&s.free_sends);
		size_t length = 8 + number % (SIZE - 8);
		memset(s.sends[slot], (int)number, length);
		struct ibv_sge sge = { (uintptr_t)s.sends[slot], (uint32_t)length, s.mr->lkey };
		if (own % 2) {
			/* Half of the batches are aborted first. */
			if (number / POSTERS % 4 < 2) {
				ibv_wr_start(ibv_qp_to_qp_ex(pair->sender));
				ibv_wr_abort(ibv_qp_to_qp_ex(pair->sender));
			}
			send_new(pair, slot, &sge, number);
		} else {
			send_old(pair, slot, &sge, number);
		}
	}
	return NULL;
}

static void *send_poller(void *unused)
{
	(void)unused;
	double deadline = seconds() + DEADLINE_SECONDS;
	while (__atomic_load_n(&s.sent, __ATOMIC_ACQUIRE) < s.messages) {
		struct ibv_wc wcs[3];
		int count = ibv_poll_cq(s.send_cq, 3, wcs);
		CHECK(count >= 0 && seconds() < deadline);
		for (int i = 0; i < count; i++) {
			IS(wcs[i].status, IBV_WC_SUCCESS);
			give_back(&s.free_sends, wcs[i].wr_id);
		}
		__atomic_add_fetch(&s.sent, count, __ATOMIC_ACQ_REL);
		if (!count)
			sched_yield();
	}
	return NULL;
}

/* Checks a message that has arrived in a slot. */
static void arrived(uint64_t slot, uint32_t length, uint32_t number)
{
	uint32_t header = s.kind == UD ? GRH : 0;
	CHECK(slot < SLOTS && number < (uint32_t)s.messages);
	IS(length, header + 8 + number % (SIZE - 8));
	for (uint32_t i = header; i < length; i++)
		IS(s.receives[slot][i], (uint8_t)number);
	IS(__atomic_fetch_add(&s.arrived[number], 1, __ATOMIC_ACQ_REL), 0);
	give_back(&s.free_receives, slot);
	__atomic_add_fetch(&s.received, 1, __ATOMIC_ACQ_REL);
}

static int poll_old(void)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(ibv_cq_ex_to_cq(s.recv_cq), 1, &wc);
	if (count == 1) {
		IS(wc.status, IBV_WC_SUCCESS);
		arrived(wc.wr_id, wc.byte_len, be32toh(wc.imm_data));
	}
	return count;
}

static int poll_new(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int count = 0, result = ibv_start_poll(s.recv_cq, &attr);
	if (result == ENOENT)
		return 0;
	while (result == 0) {
		IS(s.recv_cq->status, IBV_WC_SUCCESS);
		arrived(s.recv_cq->wr_id, ibv_wc_read_byte_len(s.recv_cq),
			be32toh(ibv_wc_read_imm_data(s.recv_cq)));
		result = ++count < 3 ? ibv_next_poll(s.recv_cq) : ENOENT;
	}
	IS(result, ENOENT);
	ibv_end_poll(s.recv_cq);
	return count;
}

static void *receive_poller(void *is_old)
{
	double deadline = seconds() + DEADLINE_SECONDS;
	while (__atomic_load_n(&s.received, __ATOMIC_ACQUIRE) < s.messages) {
		int count = is_old ? poll_old() : poll_new();
		CHECK(count >= 0 && seconds() < deadline);
		if (!count)
			sched_yield();
	}
	return NULL;
}

/* Creates and destroys objects of the domain and of the completion queues, and changes the
 * queues. */
static void *neighbour(void *unused)
{
	(void)unused;
	int depth = 0;
	do {
		struct ibv_mr *mr = ibv_reg_mr(s.pd, s.sends, sizeof s.sends, ALL_ACCESS | IBV_ACCESS_MW_BIND);
		struct ibv_mw *mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_2);
		struct ibv_ah_attr path = own_path(context);
		struct ibv_ah *ah = ibv_create_ah(s.pd, &path);
		struct ibv_srq *srq = new_srq(false);
		struct ibv_qp *one = new_qp(IBV_QPT_RC, srq, true), *other = new_qp(IBV_QPT_RC, NULL, false);
		CHECK(mr && mw && ah);
		connect_pair(one, other);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		struct ibv_qp_init_attr init;
		IS(ibv_query_qp(s.pairs[0].sender, &attr, IBV_QP_STATE, &init), 0);
		IS(attr.qp_state, IBV_QPS_RTS);
		IS(ibv_dealloc_pd(s.pd), EBUSY);
		IS(ibv_resize_cq(s.send_cq, 4 * SLOTS + ++depth % 16), 0);
		IS(ibv_req_notify_cq(s.send_cq, 0), 0);
		if (s.pairs[0].srq) {
			struct ibv_srq_attr limit = { .srq_limit = 1 };
			IS(ibv_modify_srq(s.pairs[0].srq, &limit, IBV_SRQ_LIMIT), 0);
			IS(ibv_query_srq(s.pairs[0].srq, &limit), 0);
		}
		IS(ibv_destroy_qp(one), 0);
		IS(ibv_destroy_qp(other), 0);
		IS(ibv_destroy_srq(srq), 0);
		IS(ibv_destroy_ah(ah), 0);
		IS(ibv_dealloc_mw(mw), 0);
		IS(ibv_dereg_mr(mr), 0);
	} while (__atomic_load_n(&s.received, __ATOMIC_ACQUIRE) < s.messages);
	return NULL;
}

static void messages_arrive_once(enum kind kind)
{
	memset(&s, 0, sizeof s);
	s.kind = kind;
	s.messages = 50 * POSTERS * repeats;
	s.free_sends = s.free_receives = (1u << SLOTS) - 1;
	s.arrived = calloc((size_t)s.messages, 1);
	s.pd = ibv_alloc_pd(context);
	s.send_cq = ibv_create_cq(context, 4 * SLOTS, NULL, NULL, 0);
	s.recv_cq = ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){
						      .cqe = 4 * SLOTS, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN |
										    IBV_WC_EX_WITH_IMM });
	CHECK(s.arrived && s.pd && s.send_cq && s.recv_cq);
	s.mr = ibv_reg_mr(s.pd, &s, sizeof s, IBV_ACCESS_LOCAL_WRITE);
	CHECK(s.mr != NULL);
	struct ibv_ah_attr path = own_path(context);
	s.ah = ibv_create_ah(s.pd, &path);
	CHECK(s.ah != NULL);
	if (kind == RC_SRQ)
		s.srq = new_srq(false);
	if (kind == XRC) {
		s.xrcd = ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){
							.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
							.fd = -1, .oflags = O_CREAT });
		CHECK(s.xrcd != NULL);
	}
	for (int i = 0; i < 2; i++)
		s.pairs[i] = new_pair();

	pthread_t threads[POSTERS + 5];
	int count = 0;
	for (uintptr_t i = 0; i < POSTERS; i++)
		IS(pthread_create(&threads[count++], NULL, poster, (void *)i), 0);
	for (uintptr_t i = 0; i < 2; i++) {
		IS(pthread_create(&threads[count++], NULL, send_poller, NULL), 0);
		IS(pthread_create(&threads[count++], NULL, receive_poller, (void *)i), 0);
	}
	IS(pthread_create(&threads[count++], NULL, neighbour, NULL), 0);
	for (int i = 0; i < count; i++)
		IS(pthread_join(threads[i], NULL), 0);

	for (int i = 0; i < s.messages; i++)
		if (s.arrived[i] != 1) {
			fprintf(stderr, "shared_queues.c: %s: message %d arrived %d times\n", names[kind], i, s.arrived[i]);
			exit(1);
		}
	struct ibv_wc wc;
	IS(ibv_poll_cq(s.send_cq, 1, &wc), 0);
	IS(ibv_poll_cq(ibv_cq_ex_to_cq(s.recv_cq), 1, &wc), 0);
	for (int i = 0; i < 2; i++) {
		IS(ibv_destroy_qp(s.pairs[i].sender), 0);
		IS(ibv_destroy_qp(s.pairs[i].receiver), 0);
		if (kind == XRC)
			IS(ibv_destroy_srq(s.pairs[i].srq), 0);
	}
	if (s.srq)
		IS(ibv_destroy_srq(s.srq), 0);
	if (s.xrcd)
		IS(ibv_close_xrcd(s.xrcd), 0);
	IS(ibv_destroy_ah(s.ah), 0);
	IS(ibv_dereg_mr(s.mr), 0);
	IS(ibv_destroy_cq(s.send_cq), 0);
	IS(ibv_destroy_cq(ibv_cq_ex_to_cq(s.recv_cq)), 0);
	IS(ibv_dealloc_pd(s.pd), 0);
	free(s.arrived);
}

int main(int argc, char **argv)
{
	repeats = rounds(argc, argv);
	context = open_device();
	for (int kind = 0; kind < KINDS; kind++)
		messages_arrive_once((enum kind)kind);
	IS(ibv_close_device(context), 0);
	return 0;
}

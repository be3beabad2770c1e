/* Extended completion queues: polling one completion at a time, and reading its fields. */
#include <sched.h>

#include "test.h"

enum { FIELDS = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
		IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS };

static struct side one, other;

static void post_send(uint64_t wr_id, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = sge_of(&one, 0, 32);
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(0xcafe0000 + (uint32_t)wr_id) }, *bad;
	IS(ibv_post_send(one.qp, &wr, &bad), 0);
}

static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	double deadline = seconds() + DEADLINE_SECONDS;
	int result;
	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		CHECK(seconds() < deadline);
	return result;
}

static struct ibv_cq_ex *create(struct ibv_context *context, uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = wc_flags, .flags = flags,
					    .comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0,
					    .cq_context = &one };
	return ibv_create_cq_ex(context, &attr);
}

static void fields_are_read(struct ibv_context *context, uint32_t flags)
{
	struct ibv_cq_ex *cq = create(context, FIELDS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, flags);
	CHECK(cq != NULL);
	CHECK(cq->cq_context == &one && cq->cqe >= 64 && ibv_cq_ex_to_cq(cq)->context == context);
	one = make_side(context, IBV_QPT_RC, 4096);
	other = make_side(context, 0, 4096);
	struct ibv_qp_init_attr attr = qp_attr(ibv_cq_ex_to_cq(cq), IBV_QPT_RC);
	other.qp = ibv_create_qp(other.pd, &attr);
	CHECK(other.qp != NULL);
	connect_pair(one.qp, other.qp);

	struct ibv_poll_cq_attr poll_attr = { 0 };
	IS(ibv_start_poll(cq, &poll_attr), ENOENT);
	poll_attr.comp_mask = 1;
	IS(ibv_start_poll(cq, &poll_attr), EINVAL);

	for (uint64_t i = 0; i < 8; i++)
		post_recv(&other, 100 + i, 0, 64);
	for (uint64_t i = 0; i < 8; i++) {
		post_send(i, i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND);
		success_of(one.cq);
	}
	IS(start(cq), 0);
	uint64_t last = 0;
	for (uint64_t i = 0;; i++) {
		IS(cq->status, IBV_WC_SUCCESS);
		CHECK(cq->wr_id == 100 + i);
		IS(ibv_wc_read_opcode(cq), IBV_WC_RECV);
		IS(ibv_wc_read_byte_len(cq), 32);
		IS(ibv_wc_read_qp_num(cq), other.qp->qp_num);
		IS(ibv_wc_read_vendor_err(cq), 0);
		IS(!!(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM), i % 2);
		if (i % 2)
			IS(be32toh(ibv_wc_read_imm_data(cq)), 0xcafe0000 + i);
		IS(ibv_wc_read_sl(cq), 0);
		IS(ibv_wc_read_dlid_path_bits(cq), 0);
		CHECK(ibv_wc_read_completion_ts(cq) > last);
		last = ibv_wc_read_completion_ts(cq);
		/* The last one is polled into an array. */
		if (i == 6)
			break;
		double deadline = seconds() + DEADLINE_SECONDS;
		int result;
		while ((result = ibv_next_poll(cq)) == ENOENT)
			CHECK(seconds() < deadline);
		IS(result, 0);
	}
	ibv_end_poll(cq);
	CHECK(success_of(ibv_cq_ex_to_cq(cq)).wr_id == 107);
	IS(ibv_start_poll(cq, NULL), ENOENT);

	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 4, 8 } };
	IS_ONE_OF(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &moderation), 0, EOPNOTSUPP);
	moderation.attr_mask = 1 << 20;
	IS_ONE_OF(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &moderation), EINVAL, EOPNOTSUPP);
	IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), EBUSY);
	IS(ibv_destroy_qp(other.qp), 0);
	IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	other.qp = NULL;
	destroy_side(&one);
	destroy_side(&other);
}

static void unknown_fields_and_flags_are_refused(struct ibv_context *context)
{
	CHECK(create(context, 1ull << 40, 0) == NULL);
	IS_ONE_OF(errno, EOPNOTSUPP, EINVAL);
	CHECK(create(context, IBV_WC_EX_WITH_TM_INFO, 0) == NULL);
	IS_ONE_OF(errno, EOPNOTSUPP, EINVAL);
	CHECK(create(context, 0, 1u << 30) == NULL);
	IS_ONE_OF(errno, EOPNOTSUPP, EINVAL);
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .comp_mask = 1u << 30 };
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = 0 };
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr = (struct ibv_cq_init_attr_ex){ .cqe = 64, .comp_vector = 12345 };
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
}

/* The call order of a program that polls all completions, requests an event, and ends its poll. */
static void an_event_is_asked_for_between_start_and_end(struct ibv_context *context, uint32_t flags)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel != NULL);
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = FIELDS, .flags = flags, .channel = channel,
					    .comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	CHECK(cq != NULL);
	one = make_side(context, 0, 4096);
	struct ibv_qp_init_attr of_qp = qp_attr(ibv_cq_ex_to_cq(cq), IBV_QPT_RC);
	one.qp = ibv_create_qp(one.pd, &of_qp);
	CHECK(one.qp != NULL);
	to_init(one.qp);
	connect_qp(one.qp, one.qp->qp_num);

	for (int i = 0; i < 3; i++) {
		loop_message(&one);
		IS(start(cq), 0);
		double deadline = seconds() + DEADLINE_SECONDS;
		int result;
		while ((result = ibv_next_poll(cq)) == ENOENT)
			CHECK(seconds() < deadline);
		IS(result, 0);
		uint64_t wr_id = cq->wr_id;
		enum ibv_wc_opcode opcode = ibv_wc_read_opcode(cq);
		IS(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0), 0);
		struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE };
		IS_ONE_OF(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &moderation), 0, EOPNOTSUPP);
		/* The current completion stays valid. */
		CHECK(cq->wr_id == wr_id && (wr_id == 1 || wr_id == 2));
		IS(ibv_wc_read_opcode(cq), opcode);
		IS(ibv_wc_read_qp_num(cq), one.qp->qp_num);
		IS(ibv_next_poll(cq), ENOENT);
		ibv_end_poll(cq);
		struct ibv_cq *its;
		void *cq_context;
		/* For a soft device, completions are unpolled until the end of the poll. */
		if (readable(channel->fd, 0)) {
			IS(ibv_get_cq_event(channel, &its, &cq_context), 0);
			ibv_ack_cq_events(its, 1);
			IS(ibv_req_notify_cq(its, 0), 0);
			CHECK(!readable(channel->fd, 0));
		}

		loop_message(&one);
		IS(ibv_get_cq_event(channel, &its, &cq_context), 0);
		CHECK(its == ibv_cq_ex_to_cq(cq));
		ibv_ack_cq_events(its, 1);
		success_of(its);
		success_of(its);
		CHECK(!readable(channel->fd, 0));
	}
	IS(ibv_destroy_qp(one.qp), 0);
	one.qp = NULL;
	IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	destroy_side(&one);
	IS(ibv_destroy_comp_channel(channel), 0);
}

/* Several threads poll one queue; each completion has one reader. */
enum { THREADS = 4, MESSAGES = 400 };

static struct ibv_cq_ex *shared;
static int seen[MESSAGES], total;

static void *poller(void *unused)
{
	(void)unused;
	double deadline = seconds() + DEADLINE_SECONDS;
	while (__atomic_load_n(&total, __ATOMIC_ACQUIRE) < MESSAGES) {
		CHECK(seconds() < deadline);
		struct ibv_poll_cq_attr attr = { 0 };
		if (ibv_start_poll(shared, &attr) != 0)
			continue;
		do {
			CHECK(shared->status == IBV_WC_SUCCESS && shared->wr_id < MESSAGES);
			CHECK(ibv_wc_read_byte_len(shared) == 32);
			__atomic_add_fetch(&seen[shared->wr_id], 1, __ATOMIC_RELAXED);
			__atomic_add_fetch(&total, 1, __ATOMIC_RELEASE);
		} while (ibv_next_poll(shared) == 0);
		ibv_end_poll(shared);
	}
	return NULL;
}

static void threads_share_a_queue(struct ibv_context *context)
{
	shared = create(context, FIELDS, 0);
	CHECK(shared != NULL);
	one = make_side(context, IBV_QPT_RC, 4096);
	other = make_side(context, 0, 4096);
	struct ibv_qp_init_attr attr = qp_attr(ibv_cq_ex_to_cq(shared), IBV_QPT_RC);
	other.qp = ibv_create_qp(other.pd, &attr);
	CHECK(other.qp != NULL);
	connect_pair(one.qp, other.qp);
	memset(seen, 0, sizeof seen);
	total = 0;
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		IS(pthread_create(&threads[i], NULL, poller, NULL), 0);
	for (uint64_t i = 0; i < MESSAGES; i++) {
		post_recv(&other, i, 0, 64);
		post_send(i, IBV_WR_SEND);
		success_of(one.cq);
		/* The queue has room for 64. */
		while (__atomic_load_n(&total, __ATOMIC_ACQUIRE) + 32 < (int)i)
			sched_yield();
	}
	for (int i = 0; i < THREADS; i++)
		IS(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < MESSAGES; i++)
		IS(seen[i], 1);
	IS(ibv_destroy_qp(other.qp), 0);
	IS(ibv_destroy_cq(ibv_cq_ex_to_cq(shared)), 0);
	other.qp = NULL;
	destroy_side(&one);
	destroy_side(&other);
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		fields_are_read(context, 0);
		fields_are_read(context, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
		an_event_is_asked_for_between_start_and_end(context, 0);
		an_event_is_asked_for_between_start_and_end(context, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
		unknown_fields_and_flags_are_refused(context);
	}
	threads_share_a_queue(context);
	IS(ibv_close_device(context), 0);
	return 0;
}

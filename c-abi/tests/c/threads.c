/* Threads on all objects: objects come and go; queues are shared by posters, pollers and a thread
 * that changes the queue pair's state. */
#include <fcntl.h>
#include <sched.h>

#include "test.h"

static struct ibv_context *context;
static int repeats, stop;

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_ACQUIRE);
}

/* Creates and destroys all kinds of objects, with traffic between two queue pairs. */
static void *objects_come_and_go(void *unused)
{
	(void)unused;
	for (int i = 0; i < repeats; i++) {
		struct side one = make_side(context, IBV_QPT_RC, 4096), other = make_side(context, IBV_QPT_RC, 4096);
		connect_pair(one.qp, other.qp);
		memset(one.memory, i + 1, 1000);
		post_recv(&other, 5, 0, 1000);
		struct ibv_sge sge = sge_of(&one, 0, 1000);
		struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		IS(ibv_post_send(one.qp, &wr, &bad), 0);
		CHECK(success_of(one.cq).wr_id == 6 && success_of(other.cq).wr_id == 5);
		CHECK(!memcmp(one.memory, other.memory, 1000));
		struct ibv_ah_attr path = own_path(context);
		struct ibv_ah *ah = ibv_create_ah(one.pd, &path);
		CHECK(ah != NULL);
		IS(ibv_destroy_ah(ah), 0);
		destroy_side(&one);
		destroy_side(&other);
	}
	return NULL;
}

static void *lists_and_contexts_come_and_go(void *unused)
{
	(void)unused;
	for (int i = 0; i < repeats; i++) {
		struct ibv_context *own = open_device();
		struct ibv_device_attr attr;
		struct ibv_port_attr port;
		IS(ibv_query_device(own, &attr), 0);
		IS(ibv_query_port(own, PORT, &port), 0);
		CHECK(own->device == context->device);
		IS(ibv_close_device(own), 0);
	}
	return NULL;
}

static struct side one, other;
static int posted, sent, received;

/* Returns the number of messages that have left both queues. */
static int ended(void)
{
	int sends = __atomic_load_n(&sent, __ATOMIC_ACQUIRE), receives = __atomic_load_n(&received, __ATOMIC_ACQUIRE);
	return sends < receives ? sends : receives;
}

/* Posts and polls on queues also used by other threads. */
static void *worker(void *argument)
{
	uint64_t number = (uintptr_t)argument;
	double deadline = seconds() + DEADLINE_SECONDS;
	for (int i = 0; i < 50 * repeats;) {
		CHECK(seconds() < deadline);
		/* Few enough for either queue, whatever the other threads do: a message leaves the send queue
		 * when its completion is polled, which may be long after it was received. */
		if (__atomic_add_fetch(&posted, 1, __ATOMIC_ACQ_REL) - ended() <= 16) {
			post_recv(&other, number, 1024 * number, 1024);
			struct ibv_sge sge = sge_of(&one, 1024 * number, 1 + (size_t)i % 1000);
			struct ibv_send_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1,
						  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
			IS(ibv_post_send(one.qp, &wr, &bad), 0);
			i++;
		} else {
			__atomic_sub_fetch(&posted, 1, __ATOMIC_ACQ_REL);
			sched_yield();
		}
		struct ibv_wc wcs[4];
		int count = ibv_poll_cq(one.cq, 4, wcs);
		CHECK(count >= 0);
		for (int j = 0; j < count; j++)
			IS(wcs[j].status, IBV_WC_SUCCESS);
		__atomic_add_fetch(&sent, count, __ATOMIC_ACQ_REL);
		count = ibv_poll_cq(other.cq, 4, wcs);
		CHECK(count >= 0);
		for (int j = 0; j < count; j++)
			IS(wcs[j].status, IBV_WC_SUCCESS);
		__atomic_add_fetch(&received, count, __ATOMIC_ACQ_REL);
	}
	return NULL;
}

static void *querier(void *unused)
{
	(void)unused;
	while (!stopped()) {
		struct ibv_qp_attr attr = { .min_rnr_timer = 12 };
		struct ibv_qp_init_attr init;
		IS(ibv_query_qp(one.qp, &attr, IBV_QP_STATE, &init), 0);
		IS(attr.qp_state, IBV_QPS_RTS);
		attr.min_rnr_timer = 2;
		IS(ibv_modify_qp(one.qp, &attr, IBV_QP_MIN_RNR_TIMER), 0);
		sched_yield();
	}
	return NULL;
}

static void queues_are_shared(void)
{
	enum { WORKERS = 4 };
	one = make_side(context, IBV_QPT_RC, 8192);
	other = make_side(context, IBV_QPT_RC, 8192);
	connect_pair(one.qp, other.qp);
	posted = sent = received = stop = 0;
	pthread_t workers[WORKERS], asks;
	for (uintptr_t i = 0; i < WORKERS; i++)
		IS(pthread_create(&workers[i], NULL, worker, (void *)i), 0);
	IS(pthread_create(&asks, NULL, querier, NULL), 0);
	for (int i = 0; i < WORKERS; i++)
		IS(pthread_join(workers[i], NULL), 0);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	IS(pthread_join(asks, NULL), 0);
	for (; sent < WORKERS * 50 * repeats; sent++)
		success_of(one.cq);
	for (; received < WORKERS * 50 * repeats; received++)
		success_of(other.cq);
	struct ibv_wc wc;
	IS(ibv_poll_cq(one.cq, 1, &wc), 0);
	IS(ibv_poll_cq(other.cq, 1, &wc), 0);
	destroy_side(&one);
	destroy_side(&other);
}

/* Posts to a queue pair whose state another thread changes: each call either succeeds or is
 * rejected. */
static void *poster(void *unused)
{
	(void)unused;
	struct ibv_sge sge = sge_of(&one, 0, 64), recv_sge = sge_of(&one, 64, 64);
	while (!stopped()) {
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		struct ibv_recv_wr recv = { .sg_list = &recv_sge, .num_sge = 1 }, *bad_recv;
		ibv_post_send(one.qp, &wr, &bad);
		ibv_post_recv(one.qp, &recv, &bad_recv);
		struct ibv_wc wc[8];
		CHECK(ibv_poll_cq(one.cq, 8, wc) >= 0);
		CHECK(ibv_req_notify_cq(one.cq, 0) == 0);
		/* Under valgrind only one thread runs at a time, and this one would run long if it
		 * never waited. */
		sched_yield();
	}
	return NULL;
}

static void states_change_under_the_posters(void)
{
	one = make_side(context, IBV_QPT_RC, 4096);
	stop = 0;
	pthread_t posters[2];
	for (int i = 0; i < 2; i++)
		IS(pthread_create(&posters[i], NULL, poster, NULL), 0);
	for (int i = 0; i < 5 * repeats; i++) {
		to_init(one.qp);
		connect_qp(one.qp, one.qp->qp_num);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		IS(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE), 0);
		attr.qp_state = IBV_QPS_RESET;
		IS(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE), 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		IS(pthread_join(posters[i], NULL), 0);
	destroy_side(&one);
}

/* Objects needed by others, which one thread tries to destroy while another one uses them. */
static struct {
	struct ibv_pd *pd, *parent;
	struct ibv_td *td;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq, *xrc_srq;
	struct ibv_cq *cq;
	struct ibv_qp *qp, *parent_qp;
} needed;

static void *destroyer(void *unused)
{
	(void)unused;
	while (!stopped()) {
		IS(ibv_dealloc_pd(needed.pd), EBUSY);
		IS(ibv_dealloc_pd(needed.parent), EBUSY);
		IS(ibv_dealloc_td(needed.td), EBUSY);
		IS(ibv_close_xrcd(needed.xrcd), EBUSY);
		IS(ibv_destroy_srq(needed.srq), EBUSY);
		IS(ibv_destroy_cq(needed.cq), EBUSY);
		sched_yield();
	}
	return NULL;
}

static struct ibv_srq *make_xrc_srq(void)
{
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
					     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							  IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					     .pd = needed.pd, .xrcd = needed.xrcd, .cq = needed.cq };
	struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
	CHECK(srq != NULL);
	return srq;
}

static struct ibv_qp *make_qp(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr attr = qp_attr(needed.cq, IBV_QPT_RC);
	attr.srq = needed.srq;
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp != NULL);
	return qp;
}

static void use_what_others_need(int i)
{
	static uint8_t bytes[4096];
	struct ibv_mr *mr = ibv_reg_mr(needed.pd, bytes, sizeof bytes, ALL_ACCESS);
	CHECK(mr != NULL);
	struct ibv_ah_attr path = own_path(context);
	struct ibv_ah *ah = ibv_create_ah(needed.pd, &path);
	CHECK(ah != NULL);
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &(struct ibv_parent_domain_init_attr){
									 .pd = needed.pd, .td = needed.td });
	CHECK(parent != NULL);
	struct ibv_srq *xrc_srq = make_xrc_srq();
	struct ibv_qp *qp = make_qp(needed.parent);
	/* A failed attempt does not revert a change. */
	struct ibv_srq_attr attr = { .max_wr = 16 + (uint32_t)i % 32 }, found;
	IS(ibv_modify_srq(needed.srq, &attr, IBV_SRQ_MAX_WR), 0);
	IS(ibv_query_srq(needed.srq, &found), 0);
	IS(found.max_wr, attr.max_wr);
	IS(ibv_destroy_qp(qp), 0);
	IS(ibv_destroy_srq(xrc_srq), 0);
	IS(ibv_dealloc_pd(parent), 0);
	IS(ibv_destroy_ah(ah), 0);
	IS(ibv_dereg_mr(mr), 0);
}

static void objects_in_use_survive_attempts_to_destroy_them(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	needed.pd = ibv_alloc_pd(context);
	needed.td = ibv_alloc_td(context, &(struct ibv_td_init_attr){ .comp_mask = 0 });
	needed.parent = ibv_alloc_parent_domain(context, &(struct ibv_parent_domain_init_attr){
								 .pd = needed.pd, .td = needed.td });
	needed.xrcd = ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){
							     .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
							     .fd = -1, .oflags = O_CREAT });
	needed.cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(needed.pd && needed.td && needed.parent && needed.xrcd && needed.cq);
	needed.srq = ibv_create_srq(needed.pd, &init);
	CHECK(needed.srq != NULL);
	needed.xrc_srq = make_xrc_srq();
	needed.qp = make_qp(needed.pd);
	needed.parent_qp = make_qp(needed.parent);
	stop = 0;
	pthread_t destroyers[2];
	for (int i = 0; i < 2; i++)
		IS(pthread_create(&destroyers[i], NULL, destroyer, NULL), 0);
	for (int i = 0; i < 20 * repeats; i++)
		use_what_others_need(i);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		IS(pthread_join(destroyers[i], NULL), 0);
	IS(ibv_destroy_qp(needed.parent_qp), 0);
	IS(ibv_destroy_qp(needed.qp), 0);
	IS(ibv_destroy_srq(needed.xrc_srq), 0);
	IS(ibv_destroy_srq(needed.srq), 0);
	IS(ibv_destroy_cq(needed.cq), 0);
	IS(ibv_close_xrcd(needed.xrcd), 0);
	IS(ibv_dealloc_pd(needed.parent), 0);
	IS(ibv_dealloc_td(needed.td), 0);
	IS(ibv_dealloc_pd(needed.pd), 0);
}

static void *destroy_cq_once_it_is_free(void *cq)
{
	int result;
	while ((result = ibv_destroy_cq(cq)) == EBUSY)
		sched_yield();
	IS(result, 0);
	return NULL;
}

/* Destroying a queue pair removes its completions from a queue that another thread tries to
 * destroy. */
static void a_queue_ends_as_soon_as_its_queue_pair(void)
{
	for (int i = 0; i < 20 * repeats; i++) {
		struct side side = make_side(context, IBV_QPT_RC, 4096);
		pthread_t thread;
		IS(pthread_create(&thread, NULL, destroy_cq_once_it_is_free, side.cq), 0);
		IS(ibv_destroy_qp(side.qp), 0);
		IS(pthread_join(thread, NULL), 0);
		IS(ibv_dereg_mr(side.mr), 0);
		IS(ibv_dealloc_pd(side.pd), 0);
		free(side.memory);
	}
}

int main(int argc, char **argv)
{
	enum { THREADS = 4 };
	repeats = 2 * rounds(argc, argv);
	context = open_device();
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		IS(pthread_create(&threads[i], NULL,
				  i ? objects_come_and_go : lists_and_contexts_come_and_go, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		IS(pthread_join(threads[i], NULL), 0);
	queues_are_shared();
	states_change_under_the_posters();
	objects_in_use_survive_attempts_to_destroy_them();
	a_queue_ends_as_soon_as_its_queue_pair();
	IS(ibv_close_device(context), 0);
	return 0;
}

/* Completion and asynchronous events: descriptors are real, and destroying an object waits until
 * the events read are acknowledged. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "test.h"

static struct ibv_context *context;

static struct side side_with(struct ibv_comp_channel *channel, void *cq_context)
{
	struct side side = make_side(context, 0, 4096);
	IS(ibv_destroy_cq(side.cq), 0);
	side.cq = ibv_create_cq(context, 64, cq_context, channel, 0);
	CHECK(side.cq != NULL && side.cq->channel == channel && side.cq->cq_context == cq_context);
	struct ibv_qp_init_attr attr = qp_attr(side.cq, IBV_QPT_RC);
	side.qp = ibv_create_qp(side.pd, &attr);
	CHECK(side.qp != NULL);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	return side;
}

static void events_come_when_they_are_asked_for(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel != NULL && channel->context == context && channel->refcnt == 0);
	int mark;
	struct side side = side_with(channel, &mark);
	IS(channel->refcnt, 1);
	IS(ibv_destroy_comp_channel(channel), EBUSY);
	IS(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
	int epoll_fd = epoll_create1(0);
	struct epoll_event interest = { .events = EPOLLIN }, ready;
	IS(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, channel->fd, &interest), 0);

	struct ibv_cq *cq = NULL;
	void *cq_context = NULL;
	IS(ibv_get_cq_event(channel, &cq, &cq_context), -1);
	IS(errno, EAGAIN);
	loop_message(&side);
	success_of(side.cq);
	success_of(side.cq);
	CHECK(!readable(channel->fd, 0));

	IS(ibv_req_notify_cq(side.cq, 0), 0);
	loop_message(&side);
	IS(epoll_wait(epoll_fd, &ready, 1, 1000 * DEADLINE_SECONDS), 1);
	IS(ibv_get_cq_event(channel, &cq, &cq_context), 0);
	CHECK(cq == side.cq && cq_context == &mark);
	ibv_ack_cq_events(cq, 1);
	success_of(side.cq);
	success_of(side.cq);

	/* Only solicited events. */
	IS(ibv_req_notify_cq(side.cq, 1), 0);
	loop_message(&side);
	success_of(side.cq);
	success_of(side.cq);
	CHECK(!readable(channel->fd, 0));
	close(epoll_fd);
	destroy_side(&side);
	IS(ibv_destroy_comp_channel(channel), 0);
}

/* Raises events of a queue without a reader. */
static void raise_events(struct side *side, int count)
{
	for (int i = 0; i < count; i++) {
		IS(ibv_req_notify_cq(side->cq, 0), 0);
		loop_message(side);
		success_of(side->cq);
		success_of(side->cq);
	}
}

/* More than a socket of the default size holds (about 280): the calls continue, and no event is
 * lost. */
static void a_full_channel_blocks_no_thread_and_loses_no_event(bool queues_alternate)
{
	enum { EVENTS = 500 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel != NULL);
	struct side kept = side_with(channel, NULL), ended = side_with(channel, NULL);
	for (int i = 0; i < (queues_alternate ? EVENTS : 1); i++) {
		raise_events(&kept, queues_alternate ? 1 : EVENTS);
		raise_events(&ended, queues_alternate ? 1 : EVENTS);
	}
	/* Removes its unread events, both in the socket and elsewhere. */
	destroy_side(&ended);
	raise_events(&kept, 1);
	for (int i = 0; i < EVENTS + 1; i++) {
		struct ibv_cq *cq;
		void *cq_context;
		CHECK(readable(channel->fd, 1000 * DEADLINE_SECONDS));
		IS(ibv_get_cq_event(channel, &cq, &cq_context), 0);
		CHECK(cq == kept.cq);
	}
	CHECK(!readable(channel->fd, 0));
	ibv_ack_cq_events(kept.cq, EVENTS + 1);
	destroy_side(&kept);
	IS(ibv_destroy_comp_channel(channel), 0);
}

static void *destroy_cq(void *cq)
{
	IS(ibv_destroy_cq(cq), 0);
	return NULL;
}

static void *destroy_qp(void *qp)
{
	IS(ibv_destroy_qp(qp), 0);
	return NULL;
}

static void *destroy_srq(void *srq)
{
	IS(ibv_destroy_srq(srq), 0);
	return NULL;
}

/* Waits for another thread, which a busy machine may run late. */
#define COMES_TRUE(condition)                                                                      \
	for (double deadline_ = seconds() + DEADLINE_SECONDS; !(condition);)                       \
		CHECK(seconds() < deadline_)

/* Returns whether a thread is still running after a time in which a thread that need not wait would
 * have ended. */
static bool waits(pthread_t thread)
{
	struct timespec limit;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_nsec += 20000000;
	if (limit.tv_nsec >= 1000000000) {
		limit.tv_sec++;
		limit.tv_nsec -= 1000000000;
	}
	return pthread_timedjoin_np(thread, NULL, &limit) == ETIMEDOUT;
}

static void a_completion_queue_waits_for_acknowledgements(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct side side = side_with(channel, NULL);
	struct ibv_cq *cq;
	void *cq_context;
	for (int i = 0; i < 3; i++) {
		IS(ibv_req_notify_cq(side.cq, 0), 0);
		loop_message(&side);
		IS(ibv_get_cq_event(channel, &cq, &cq_context), 0);
		success_of(side.cq);
		success_of(side.cq);
	}
	/* One more, unread, is removed. */
	IS(ibv_req_notify_cq(side.cq, 0), 0);
	loop_message(&side);
	CHECK(readable(channel->fd, 1000 * DEADLINE_SECONDS));
	IS(ibv_destroy_qp(side.qp), 0);
	side.qp = NULL;

	pthread_t thread;
	ibv_ack_cq_events(side.cq, 1);
	IS(pthread_create(&thread, NULL, destroy_cq, side.cq), 0);
	CHECK(waits(thread));
	/* The event's handler may use the queue until it acknowledges the event. */
	struct ibv_wc wc;
	IS(ibv_poll_cq(side.cq, 1, &wc), 0);
	COMES_TRUE(ibv_req_notify_cq(side.cq, 0) != 0);
	ibv_ack_cq_events(cq, 2);
	IS(pthread_join(thread, NULL), 0);
	CHECK(!readable(channel->fd, 0));
	side.cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	destroy_side(&side);
	IS(ibv_destroy_comp_channel(channel), 0);
}

static atomic_int signals;

static void count_signal(int signal)
{
	(void)signal;
	signals++;
}

/* A thread that waits for an event, and the outcome of its wait. */
struct waiter {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int result, error;
	atomic_bool is_over;
};

static void *wait_for_event(void *argument)
{
	struct waiter *waiter = argument;
	void *cq_context;
	waiter->result = ibv_get_cq_event(waiter->channel, &waiter->cq, &cq_context);
	waiter->error = errno;
	waiter->is_over = true;
	return NULL;
}

/* As a read(2) of the channel, a wait continues after a handler with SA_RESTART, and ends with EINTR
 * after another. */
static void a_signal_ends_a_wait_unless_its_handler_restarts_calls(void)
{
	struct sigaction restarts = { .sa_handler = count_signal, .sa_flags = SA_RESTART };
	struct sigaction ends = { .sa_handler = count_signal }, before;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct side side = side_with(channel, NULL);
	struct waiter waiter = { .channel = channel };
	pthread_t thread;
	IS(sigaction(SIGUSR1, &restarts, &before), 0);
	IS(ibv_req_notify_cq(side.cq, 0), 0);
	IS(pthread_create(&thread, NULL, wait_for_event, &waiter), 0);
	for (int i = 0; i < 5; i++) {
		int count = signals;
		/* At some time between its start and its sleep, or in its sleep. */
		CHECK(waits(thread));
		IS(pthread_kill(thread, SIGUSR1), 0);
		COMES_TRUE(signals > count);
	}
	CHECK(waits(thread) && !waiter.is_over);
	loop_message(&side);
	IS(pthread_join(thread, NULL), 0);
	CHECK(waiter.result == 0 && waiter.cq == side.cq);
	ibv_ack_cq_events(side.cq, 1);
	success_of(side.cq);
	success_of(side.cq);

	waiter.is_over = false;
	IS(sigaction(SIGUSR1, &ends, NULL), 0);
	IS(pthread_create(&thread, NULL, wait_for_event, &waiter), 0);
	for (double deadline = seconds() + DEADLINE_SECONDS; !waiter.is_over;) {
		CHECK(seconds() < deadline);
		IS(pthread_kill(thread, SIGUSR1), 0);
		sched_yield();
	}
	IS(pthread_join(thread, NULL), 0);
	CHECK(waiter.result == -1 && waiter.error == EINTR);
	IS(sigaction(SIGUSR1, &before, NULL), 0);
	destroy_side(&side);
	IS(ibv_destroy_comp_channel(channel), 0);
}

static atomic_bool is_enough;

static void *try_to_destroy_cq(void *cq)
{
	while (!is_enough)
		IS(ibv_destroy_cq(cq), EBUSY);
	return NULL;
}

/* Failed attempts neither lose nor repeat a completion of a queue that another thread polls. */
static void a_completion_queue_in_use_survives_attempts_to_destroy_it(void)
{
	struct side side = side_with(NULL, NULL);
	pthread_t thread;
	IS(pthread_create(&thread, NULL, try_to_destroy_cq, side.cq), 0);
	for (int i = 0; i < 300; i++) {
		loop_message(&side);
		uint64_t first = completion_of(side.cq).wr_id, second = completion_of(side.cq).wr_id;
		CHECK(first != second);
	}
	is_enough = true;
	IS(pthread_join(thread, NULL), 0);
	struct ibv_wc wc;
	IS(ibv_poll_cq(side.cq, 1, &wc), 0);
	destroy_side(&side);
}

/* A request that the peer must reject raises an asynchronous event there. */
static void a_queue_pair_waits_for_acknowledgements(void)
{
	struct side one = make_side(context, IBV_QPT_RC, 4096), other = make_side(context, IBV_QPT_RC, 4096);
	connect_pair(one.qp, other.qp);
	IS(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK), 0);
	struct ibv_async_event event;
	IS(ibv_get_async_event(context, &event), -1);
	IS(errno, EAGAIN);
	struct ibv_sge sge = sge_of(&one, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)other.memory;
	wr.wr.rdma.rkey = other.mr->rkey ^ 0x5a00;
	IS(ibv_post_send(one.qp, &wr, &bad), 0);
	IS(completion_of(one.cq).status, IBV_WC_REM_ACCESS_ERR);
	CHECK(readable(context->async_fd, 1000 * DEADLINE_SECONDS));
	IS(ibv_get_async_event(context, &event), 0);
	IS(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == other.qp);

	pthread_t thread;
	IS(pthread_create(&thread, NULL, destroy_qp, other.qp), 0);
	CHECK(waits(thread));
	/* The event's handler may use the queue pair until it acknowledges the event. */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	COMES_TRUE(ibv_query_qp(other.qp, &attr, IBV_QP_STATE, &init) != 0);
	IS(ibv_destroy_qp(other.qp), EINVAL);
	ibv_ack_async_event(&event);
	IS(pthread_join(thread, NULL), 0);
	other.qp = NULL;
	destroy_side(&one);
	destroy_side(&other);
	/* The first one's events are gone with it. */
	while (ibv_get_async_event(context, &event) == 0) {
		CHECK(event.element.qp != one.qp);
		ibv_ack_async_event(&event);
	}
}

static void a_shared_receive_queue_raises_its_limit(void)
{
	struct side one = make_side(context, IBV_QPT_RC, 4096), other = make_side(context, 0, 4096);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 }, .srq_context = &one };
	struct ibv_srq *srq = ibv_create_srq(other.pd, &init);
	CHECK(srq != NULL && srq->srq_context == &one && init.attr.max_wr >= 16);
	struct ibv_qp_init_attr attr = qp_attr(other.cq, IBV_QPT_RC);
	attr.srq = srq;
	other.qp = ibv_create_qp(other.pd, &attr);
	CHECK(other.qp != NULL && other.qp->srq == srq);
	connect_pair(one.qp, other.qp);
	struct ibv_sge sge = sge_of(&other, 0, 64);
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	for (int i = 0; i < 4; i++)
		IS(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	IS(ibv_post_recv(other.qp, &recv, &bad_recv), EINVAL);
	struct ibv_srq_attr limit = { .srq_limit = 3 };
	IS(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	IS(ibv_query_srq(srq, &limit), 0);
	IS(limit.srq_limit, 3);
	/* Unknown bits of the mask are ignored. */
	IS(ibv_modify_srq(srq, &limit, 1 << 20), 0);
	IS(ibv_destroy_srq(srq), EBUSY);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge from = sge_of(&one, 0, 8);
		struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		IS(ibv_post_send(one.qp, &wr, &bad), 0);
		success_of(one.cq);
		success_of(other.cq);
	}
	struct ibv_async_event event;
	CHECK(readable(context->async_fd, 1000 * DEADLINE_SECONDS));
	IS(ibv_get_async_event(context, &event), 0);
	IS(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	IS(ibv_query_srq(srq, &limit), 0);
	IS(limit.srq_limit, 0);
	IS(ibv_destroy_qp(other.qp), 0);
	other.qp = NULL;

	pthread_t thread;
	IS(pthread_create(&thread, NULL, destroy_srq, srq), 0);
	CHECK(waits(thread));
	/* The event's handler may use the queue until it acknowledges the event. A new queue is
	 * distinct, even if it gets the old one's number. */
	struct ibv_srq *next = ibv_create_srq(other.pd, &init);
	CHECK(next != NULL);
	COMES_TRUE(ibv_query_srq(srq, &limit) != 0);
	limit.srq_limit = 3;
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) != 0);
	limit.max_wr = 99;
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_MAX_WR) != 0);
	IS(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	ibv_ack_async_event(&event);
	IS(pthread_join(thread, NULL), 0);
	IS(ibv_query_srq(next, &limit), 0);
	IS(limit.srq_limit, 0);
	IS(ibv_destroy_srq(next), 0);
	destroy_side(&one);
	destroy_side(&other);
}

int main(int argc, char **argv)
{
	context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		events_come_when_they_are_asked_for();
		a_full_channel_blocks_no_thread_and_loses_no_event(false);
		a_full_channel_blocks_no_thread_and_loses_no_event(true);
		a_completion_queue_waits_for_acknowledgements();
		a_signal_ends_a_wait_unless_its_handler_restarts_calls();
		a_completion_queue_in_use_survives_attempts_to_destroy_it();
		a_queue_pair_waits_for_acknowledgements();
		a_shared_receive_queue_raises_its_limit();
	}
	IS(ibv_close_device(context), 0);
	return 0;
}

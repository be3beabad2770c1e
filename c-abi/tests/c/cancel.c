/* pthread_cancel: a thread ends only in the waits for events, where it holds nothing.
 *
 * A thread that has cancelled itself ends at the next cancellation point, so no case depends on the
 * time when a cancellation arrives. */
#include "connections.h"

#include <sys/syscall.h>

static char survived;

struct work {
	void (*call)(void *argument);
	void *argument;
};

static void *do_cancelled(void *argument)
{
	const struct work *work = argument;
	pthread_cancel(pthread_self());
	work->call(work->argument);
	return &survived;
}

/* Makes calls in a thread with a pending cancellation, and returns how it ended. */
static void *cancelled(void (*call)(void *), void *argument)
{
	pthread_t thread;
	struct work work = { call, argument };
	void *result = NULL;
	IS(pthread_create(&thread, NULL, do_cancelled, &work), 0);
	IS(pthread_join(thread, &result), 0);
	return result;
}

#define IS_NO_POINT(call, argument) CHECK(cancelled(call, argument) == &survived)
#define IS_POINT(call, argument) CHECK(cancelled(call, argument) == PTHREAD_CANCELED)

static void devices(void *unused)
{
	(void)unused;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;
	struct ibv_context *context = open_device();
	IS(ibv_query_device(context, &attr), 0);
	IS(ibv_query_port(context, PORT, &port), 0);
	IS(ibv_query_gid(context, PORT, 0, &gid), 0);
	IS(ibv_query_pkey(context, PORT, 0, &pkey), 0);
	IS(ibv_close_device(context), 0);
}

static void objects(void *argument)
{
	struct ibv_context *context = argument;
	struct side side = make_side(context, IBV_QPT_UD, 4096);
	to_init(side.qp);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_qp_attr state;
	struct ibv_qp_init_attr made;
	struct ibv_ah_attr path = own_path(context);
	struct ibv_srq *srq = ibv_create_srq(side.pd, &init);
	struct ibv_ah *ah = ibv_create_ah(side.pd, &path);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(srq && ah && channel);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
	CHECK(cq != NULL);
	IS(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	IS(ibv_query_srq(srq, &limit), 0);
	IS(ibv_query_qp(side.qp, &state, IBV_QP_STATE, &made), 0);
	IS(ibv_resize_cq(cq, 16), 0);
	REFUSED(ibv_reg_mr(side.pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	IS(ibv_destroy_cq(cq), 0);
	IS(ibv_destroy_comp_channel(channel), 0);
	IS(ibv_destroy_ah(ah), 0);
	IS(ibv_destroy_srq(srq), 0);
	destroy_side(&side);
}

/* Messages with events. They begin with a wakeup of any background thread. */
static void messages(void *argument)
{
	struct ibv_context *context = argument;
	struct side side = make_side(context, IBV_QPT_RC, 4096);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel != NULL);
	struct ibv_cq *plain = side.cq;
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, channel, 0);
	CHECK(cq != NULL);
	struct ibv_qp_init_attr attr = qp_attr(cq, IBV_QPT_RC);
	struct ibv_qp *unused = side.qp;
	side.qp = ibv_create_qp(side.pd, &attr);
	side.cq = cq;
	CHECK(side.qp != NULL);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	for (int i = 0; i < 100; i++) {
		IS(ibv_req_notify_cq(cq, 0), 0);
		loop_message(&side);
		success_of(cq);
		success_of(cq);
	}
	/* With unread events. */
	IS(ibv_destroy_qp(side.qp), 0);
	IS(ibv_destroy_cq(cq), 0);
	IS(ibv_destroy_comp_channel(channel), 0);
	side.qp = unused;
	side.cq = plain;
	destroy_side(&side);
}

static void names(void *unused)
{
	(void)unused;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	IS(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found), 0);
	rdma_freeaddrinfo(found);
	IS(rdma_getaddrinfo("localhost", "7471", &hints, &found), 0);
	rdma_freeaddrinfo(found);
}

static void make_channel(void *channel)
{
	CHECK((*(struct rdma_event_channel **)channel = rdma_create_event_channel()) != NULL);
}

/* The ends of a connection and the state for the next step. */
struct ends {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *client, *server;
};

static void listen_and_resolve(void *argument)
{
	struct ends *ends = argument;
	ends->listener = listener_on(ends->channel, RDMA_PS_TCP);
	struct sockaddr_in to = own_address(ntohs(rdma_get_src_port(ends->listener)));
	IS(rdma_create_id(ends->channel, &ends->client, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(ends->client, NULL, (struct sockaddr *)&to, TIMEOUT_MS), 0);
}

static void resolve_route(void *argument)
{
	IS(rdma_resolve_route(((struct ends *)argument)->client, TIMEOUT_MS), 0);
}

static void connect_client(void *argument)
{
	struct rdma_cm_id *client = ((struct ends *)argument)->client;
	give_qp(client, IBV_QPT_RC);
	IS(rdma_connect(client, NULL), 0);
}

static void accept_server(void *argument)
{
	struct rdma_cm_id *server = ((struct ends *)argument)->server;
	give_qp(server, IBV_QPT_RC);
	IS(rdma_accept(server, NULL), 0);
}

static void disconnect(void *argument)
{
	IS(rdma_disconnect(((struct ends *)argument)->client), 0);
}

static void end_all(void *argument)
{
	struct ends *ends = argument;
	end(ends->client);
	end(ends->server);
	end(ends->listener);
	rdma_destroy_event_channel(ends->channel);
}

static void a_connection_has_no_point_but_the_wait(void)
{
	struct ends ends;
	IS_NO_POINT(make_channel, &ends.channel);
	IS_NO_POINT(listen_and_resolve, &ends);
	pass(ends.channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	IS_NO_POINT(resolve_route, &ends);
	pass(ends.channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	IS_NO_POINT(connect_client, &ends);
	ends.server = request_of(ends.channel, ends.listener);
	IS_NO_POINT(accept_server, &ends);
	/* The other end gets an event as well, in either order. */
	pass(ends.channel, RDMA_CM_EVENT_ESTABLISHED);
	pass(ends.channel, RDMA_CM_EVENT_ESTABLISHED);
	IS_NO_POINT(disconnect, &ends);
	pass(ends.channel, RDMA_CM_EVENT_DISCONNECTED);
	IS_NO_POINT(end_all, &ends);
}

/* Posts and polls until stopped. */
struct traffic {
	struct side side;
	int stop, rounds;
};

static void *carry_on(void *argument)
{
	struct traffic *traffic = argument;
	while (!__atomic_load_n(&traffic->stop, __ATOMIC_ACQUIRE)) {
		loop_message(&traffic->side);
		success_of(traffic->side.cq);
		success_of(traffic->side.cq);
		__atomic_add_fetch(&traffic->rounds, 1, __ATOMIC_RELEASE);
	}
	return &survived;
}

/* The thread is cancelled at an arbitrary point. */
static void a_thread_that_posts_and_polls_is_not_cancelled(struct ibv_context *context)
{
	struct traffic traffic = { .side = make_side(context, IBV_QPT_RC, 4096) };
	pthread_t thread;
	void *result;
	double deadline = seconds() + DEADLINE_SECONDS;
	to_init(traffic.side.qp);
	connect_qp(traffic.side.qp, traffic.side.qp->qp_num);
	IS(pthread_create(&thread, NULL, carry_on, &traffic), 0);
	while (__atomic_load_n(&traffic.rounds, __ATOMIC_ACQUIRE) < 10)
		CHECK(seconds() < deadline);
	IS(pthread_cancel(thread), 0);
	int then = __atomic_load_n(&traffic.rounds, __ATOMIC_ACQUIRE);
	while (__atomic_load_n(&traffic.rounds, __ATOMIC_ACQUIRE) < then + 10)
		CHECK(seconds() < deadline);
	__atomic_store_n(&traffic.stop, 1, __ATOMIC_RELEASE);
	IS(pthread_join(thread, &result), 0);
	CHECK(result == &survived);
	destroy_side(&traffic.side);
}

/* The waits have no variables on the stack, which AddressSanitizer would consider in use after the
 * thread is cancelled. */
static void cq_event(void *channel)
{
	static struct ibv_cq *cq;
	static void *argument;
	ibv_get_cq_event(channel, &cq, &argument);
}

static void async_event(void *context)
{
	static struct ibv_async_event event;
	ibv_get_async_event(context, &event);
}

static void cm_event(void *channel)
{
	static struct rdma_cm_event *event;
	rdma_get_cm_event(channel, &event);
}

static void request(void *listener)
{
	static struct rdma_cm_id *id;
	rdma_get_request(listener, &id);
}

/* A thread that makes a call, and its kernel thread ID once it runs. */
struct waiter {
	struct work work;
	pid_t tid;
};

static void *wait_in(void *argument)
{
	struct waiter *waiter = argument;
	__atomic_store_n(&waiter->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	waiter->work.call(waiter->work.argument);
	return &survived;
}

/* Returns whether, according to the kernel, a thread sleeps in a system call that waits for an
 * event. */
static bool is_blocked(pid_t tid)
{
	char path[64], text[32] = "";
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	/* "running", or the number of the call. */
	char *end;
	long number = strtol(text, &end, 10);
	if (end == text)
		return false;
#ifdef SYS_poll
	if (number == SYS_poll)
		return true;
#endif
	return number == SYS_read || number == SYS_ppoll;
}

/* Cancels a thread in a wait: before it, and while it is blocked there. */
static void is_point(void (*call)(void *), void *argument)
{
	pthread_t thread;
	struct waiter waiter = { .work = { call, argument } };
	void *result;
	pid_t tid;
	double deadline = seconds() + DEADLINE_SECONDS;
	IS_POINT(call, argument);
	IS(pthread_create(&thread, NULL, wait_in, &waiter), 0);
	do {
		CHECK(seconds() < deadline);
		tid = __atomic_load_n(&waiter.tid, __ATOMIC_ACQUIRE);
	} while (!tid || !is_blocked(tid));
	IS(pthread_cancel(thread), 0);
	IS(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void a_wait_for_completions_ends_and_takes_none_along(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel != NULL);
	struct side side = make_side(context, 0, 4096);
	IS(ibv_destroy_cq(side.cq), 0);
	side.cq = ibv_create_cq(context, 64, NULL, channel, 0);
	CHECK(side.cq != NULL);
	struct ibv_qp_init_attr attr = qp_attr(side.cq, IBV_QPT_RC);
	side.qp = ibv_create_qp(side.pd, &attr);
	CHECK(side.qp != NULL);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	is_point(cq_event, channel);
	is_point(async_event, context);

	struct ibv_cq *cq;
	void *argument;
	IS(ibv_req_notify_cq(side.cq, 0), 0);
	loop_message(&side);
	IS(ibv_get_cq_event(channel, &cq, &argument), 0);
	CHECK(cq == side.cq);
	ibv_ack_cq_events(cq, 1);
	success_of(side.cq);
	success_of(side.cq);
	destroy_side(&side);
	IS(ibv_destroy_comp_channel(channel), 0);
}

static void a_wait_for_connections_ends_and_keeps_nothing(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel != NULL);
	is_point(cm_event, channel);
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	end(listener);
	int fd = channel->fd;
	rdma_destroy_event_channel(channel);
	FAILS(fcntl(fd, F_GETFD), EBADF);

	/* A synchronous id waits on a private channel. */
	listener = listener_on(NULL, RDMA_PS_TCP);
	is_point(request, listener);
	IS(rdma_destroy_id(listener), 0);
}

int main(int argc, char **argv)
{
	/* The first call of a process starts its device; closing the last context ends it. */
	IS_NO_POINT(devices, NULL);
	struct ibv_context *context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		IS_NO_POINT(devices, NULL);
		IS_NO_POINT(objects, context);
		IS_NO_POINT(messages, context);
		IS_NO_POINT(names, NULL);
		a_connection_has_no_point_but_the_wait();
		a_thread_that_posts_and_polls_is_not_cancelled(context);
		a_wait_for_completions_ends_and_takes_none_along(context);
		a_wait_for_connections_ends_and_keeps_nothing();
	}
	IS(ibv_close_device(context), 0);
	return 0;
}

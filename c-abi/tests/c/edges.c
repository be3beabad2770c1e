/* Edge-triggered event loops: anything that happens after the last look at a descriptor produces an
 * edge. Covers each descriptor that a program gets: of a completion channel, a context, an event
 * channel. */
#include "connections.h"

#include <sys/epoll.h>

enum { MOST = 100 };

/* A descriptor and the source of its events. */
struct source {
	int fd;
	void (*make)(struct source *);
	/* Reads an event; returns false if there is none. */
	bool (*take)(struct source *);
	int count;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	struct ibv_qp *qps[MOST];
	int made;
	struct ibv_srq *srq;
	struct rdma_event_channel *events;
	struct rdma_cm_id *ids[MOST];
};

static struct ibv_context *context;
static struct ibv_pd *pd;

static void *make_all(void *argument)
{
	struct source *source = argument;
	for (int i = 0; i < source->count; i++)
		source->make(source);
	return NULL;
}

/* Raises events in another thread. At each edge, reads all events that exist. */
static void follow(struct source *source)
{
	int flags = fcntl(source->fd, F_GETFL);
	IS(fcntl(source->fd, F_SETFL, flags | O_NONBLOCK), 0);
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event edge = { .events = EPOLLIN | EPOLLET };
	IS(epoll_ctl(epoll, EPOLL_CTL_ADD, source->fd, &edge), 0);
	for (int count = 1; count <= MOST; count *= 10) {
		pthread_t maker;
		source->count = count;
		source->made = 0;
		IS(pthread_create(&maker, NULL, make_all, source), 0);
		for (int left = count; left > 0;) {
			IS(epoll_wait(epoll, &edge, 1, 1000 * DEADLINE_SECONDS), 1);
			while (source->take(source))
				left--;
			CHECK(left >= 0);
		}
		IS(pthread_join(maker, NULL), 0);
		CHECK(!source->take(source));
		for (int i = 0; i < MOST; i++) {
			if (source->qps[i] && source->srq)
				IS(ibv_destroy_qp(source->qps[i]), 0);
			if (source->ids[i])
				IS(rdma_destroy_id(source->ids[i]), 0);
			source->ids[i] = NULL;
			if (source->srq)
				source->qps[i] = NULL;
		}
	}
	IS(close(epoll), 0);
}

static struct ibv_qp *make_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = qp_attr(cq, IBV_QPT_RC);
	init.srq = srq;
	if (srq)
		init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp != NULL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_ERR;
	IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	return qp;
}

static void flush_a_receive(struct source *source)
{
	struct ibv_recv_wr recv = { 0 }, *bad;
	struct ibv_wc wc;
	IS(ibv_req_notify_cq(source->cq, 0), 0);
	IS(ibv_post_recv(source->qps[0], &recv, &bad), 0);
	double end = seconds() + DEADLINE_SECONDS;
	while (ibv_poll_cq(source->cq, 1, &wc) == 0)
		CHECK(seconds() < end);
}

static bool take_completion_event(struct source *source)
{
	struct ibv_cq *cq;
	void *unused;
	if (ibv_get_cq_event(source->completions, &cq, &unused)) {
		IS(errno, EAGAIN);
		return false;
	}
	CHECK(cq == source->cq);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void a_completion_channel_makes_an_edge_for_each_event(void)
{
	struct source source = { .make = flush_a_receive, .take = take_completion_event };
	CHECK((source.completions = ibv_create_comp_channel(context)) != NULL);
	CHECK((source.cq = ibv_create_cq(context, 64, NULL, source.completions, 0)) != NULL);
	source.qps[0] = make_qp(source.cq, NULL);
	source.fd = source.completions->fd;
	follow(&source);
	IS(ibv_destroy_qp(source.qps[0]), 0);
	IS(ibv_destroy_cq(source.cq), 0);
	IS(ibv_destroy_comp_channel(source.completions), 0);
}

static void stop_a_queue_pair(struct source *source)
{
	source->qps[source->made] = make_qp(source->cq, source->srq);
	source->made++;
}

static bool take_async_event(struct source *source)
{
	struct ibv_async_event event;
	(void)source;
	if (ibv_get_async_event(context, &event)) {
		IS(errno, EAGAIN);
		return false;
	}
	IS(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	ibv_ack_async_event(&event);
	return true;
}

static void a_context_makes_an_edge_for_each_asynchronous_event(void)
{
	struct source source = { .fd = context->async_fd, .make = stop_a_queue_pair, .take = take_async_event };
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	CHECK((source.cq = ibv_create_cq(context, 64, NULL, NULL, 0)) != NULL);
	CHECK((source.srq = ibv_create_srq(pd, &init)) != NULL);
	follow(&source);
	IS(ibv_destroy_srq(source.srq), 0);
	IS(ibv_destroy_cq(source.cq), 0);
}

static void resolve_an_address(struct source *source)
{
	struct sockaddr_in address = own_address(7471);
	struct rdma_cm_id **id = &source->ids[source->made++];
	IS(rdma_create_id(source->events, id, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(*id, NULL, (struct sockaddr *)&address, TIMEOUT_MS), 0);
}

static bool take_event(struct source *source)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(source->events, &event)) {
		IS(errno, EAGAIN);
		return false;
	}
	IS(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	IS(rdma_ack_cm_event(event), 0);
	return true;
}

static void an_event_channel_makes_an_edge_for_each_event(void)
{
	struct source source = { .make = resolve_an_address, .take = take_event };
	CHECK((source.events = rdma_create_event_channel()) != NULL);
	source.fd = source.events->fd;
	follow(&source);
	rdma_destroy_event_channel(source.events);
}

int main(int argc, char **argv)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) != NULL);
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_completion_channel_makes_an_edge_for_each_event();
		a_context_makes_an_edge_for_each_asynchronous_event();
		an_event_channel_makes_an_edge_for_each_event();
	}
	IS(ibv_dealloc_pd(pd), 0);
	IS(ibv_close_device(context), 0);
	return 0;
}

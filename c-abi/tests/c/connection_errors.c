/* Failing connections: no listener, rejects, destruction in each state, nonblocking channels,
 * missing acknowledgements, calls at the wrong time. */
#include "connections.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

static void a_port_without_a_listener_rejects(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	uint16_t port = ntohs(rdma_get_src_port(listener));
	end(listener);
	struct rdma_cm_id *client = client_of(channel, RDMA_PS_TCP, port);
	give_qp(client, IBV_QPT_RC);
	IS(rdma_connect(client, NULL), 0);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_REJECTED);
	IS(event->status, 8); /* There is no such service. */
	IS(client->qp->state, IBV_QPS_ERR);
	IS(rdma_ack_cm_event(event), 0);
	end(client);

	/* Without a channel the call returns the error. */
	struct sockaddr_in address = own_address(port);
	IS(rdma_create_id(NULL, &client, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, TIMEOUT_MS), 0);
	IS(rdma_resolve_route(client, TIMEOUT_MS), 0);
	give_qp(client, IBV_QPT_RC);
	FAILS(rdma_connect(client, NULL), ECONNREFUSED);
	IS(client->event->event, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(client);
	rdma_destroy_event_channel(channel);
}

static void a_reject_has_the_bytes_of_the_peers_program(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	for (int with_data = 0; with_data < 2; with_data++) {
		struct rdma_cm_id *client = client_of(channel, RDMA_PS_TCP, ntohs(rdma_get_src_port(listener)));
		give_qp(client, IBV_QPT_RC);
		IS(rdma_connect(client, NULL), 0);
		struct rdma_cm_id *server = request_of(channel, listener);
		char data[200] = "not today";
		FAILS(rdma_reject(server, data, 200), EINVAL);
		if (with_data)
			IS(rdma_reject(server, data, 9), 0);
		else
			end(server);
		struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_REJECTED);
		IS(event->status, 28); /* The program rejects. */
		if (with_data) {
			CHECK(event->param.conn.private_data_len >= 9);
			CHECK(!memcmp(event->param.conn.private_data, "not today", 9));
			FAILS(rdma_accept(server, NULL), EINVAL);
			end(server);
		}
		IS(rdma_ack_cm_event(event), 0);
		end(client);
	}
	end(listener);
	rdma_destroy_event_channel(channel);
}

/* The kernel drops events of a request until the program accepts it. */
static void a_client_that_goes_before_the_answer_leaves_the_channel_quiet(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel(), *its = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP), *client, *server[2], *last;
	uint16_t port = ntohs(rdma_get_src_port(listener));
	/* The second request is unread when its client disappears, but it can be read. */
	for (int i = 0; i < 2; i++) {
		client = client_of(its, RDMA_PS_TCP, port);
		give_qp(client, IBV_QPT_RC);
		IS(rdma_connect(client, NULL), 0);
		if (i == 0) {
			server[0] = request_of(channel, listener);
			give_qp(server[0], IBV_QPT_RC);
		} else {
			CHECK(readable(channel->fd, 1000 * DEADLINE_SECONDS));
		}
		end(client);
	}
	server[1] = request_of(channel, listener);
	/* Its request arrives after the messages of both ends. */
	client = client_of(its, RDMA_PS_TCP, port);
	give_qp(client, IBV_QPT_RC);
	IS(rdma_connect(client, NULL), 0);
	last = request_of(channel, listener);
	CHECK(!readable(channel->fd, 0));
	FAILS(rdma_accept(server[0], NULL), EINVAL);
	CHECK(!readable(channel->fd, 0));
	end(server[0]);
	struct ibv_qp_init_attr attr = plain_qp(IBV_QPT_RC);
	FAILS(rdma_create_qp(server[1], NULL, &attr), EINVAL);
	CHECK(!readable(channel->fd, 0));
	end(server[1]);
	/* An accepted id gets events. */
	give_qp(last, IBV_QPT_RC);
	IS(rdma_accept(last, NULL), 0);
	pass(its, RDMA_CM_EVENT_ESTABLISHED);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	end(last);
	end(client);
	end(listener);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(its);
}

/* The steps of a client, which is destroyed after each of them. */
enum { CREATED, BOUND, RESOLVING, RESOLVED, ROUTED, CONNECTING, ASKED, ACCEPTED, ESTABLISHED, STEPS };

static void an_id_ends_in_each_state(void)
{
	for (int last = CREATED; last < STEPS; last++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_event_channel *other = rdma_create_event_channel();
		struct rdma_cm_id *listener = listener_on(other, RDMA_PS_TCP), *client, *server = NULL;
		struct sockaddr_in own = own_address(0), to = own_address(ntohs(rdma_get_src_port(listener)));
		IS(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP), 0);
		if (last == BOUND)
			IS(rdma_bind_addr(client, (struct sockaddr *)&own), 0);
		if (last >= RESOLVING)
			IS(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, TIMEOUT_MS), 0);
		if (last >= RESOLVED)
			pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		if (last >= ROUTED) {
			IS(rdma_resolve_route(client, TIMEOUT_MS), 0);
			pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
		}
		if (last >= CONNECTING) {
			give_qp(client, IBV_QPT_RC);
			IS(rdma_connect(client, NULL), 0);
		}
		if (last >= ASKED) {
			server = request_of(other, listener);
			give_qp(server, IBV_QPT_RC);
		}
		if (last >= ACCEPTED)
			IS(rdma_accept(server, NULL), 0);
		if (last >= ESTABLISHED) {
			pass(channel, RDMA_CM_EVENT_ESTABLISHED);
			pass(other, RDMA_CM_EVENT_ESTABLISHED);
		}
		end(client);
		if (last == ESTABLISHED)
			pass(other, RDMA_CM_EVENT_DISCONNECTED);
		if (server)
			end(server);
		end(listener);
		rdma_destroy_event_channel(channel);
		rdma_destroy_event_channel(other);
	}
}

static void a_channel_waits_unless_the_program_forbids_it(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id;
	struct sockaddr_in own = own_address(1);
	IS(fcntl(channel->fd, F_GETFL) & O_NONBLOCK, 0);
	IS(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	CHECK(!readable(channel->fd, 0));
	IS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, TIMEOUT_MS), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
	end(id);
	rdma_destroy_event_channel(channel);
}

static atomic_int signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

struct reader {
	struct rdma_event_channel *channel;
	/* Its request is read, unless the pointer is null. */
	struct rdma_cm_id *listener;
	int result, set;
	atomic_bool has_ended;
};

static void *read_event(void *argument)
{
	struct reader *reader = argument;
	struct rdma_cm_event *event;
	struct rdma_cm_id *request;
	reader->result = reader->listener ? rdma_get_request(reader->listener, &request) :
					    rdma_get_cm_event(reader->channel, &event);
	reader->set = errno;
	if (reader->result == 0)
		IS(rdma_ack_cm_event(event), 0);
	reader->has_ended = true;
	return NULL;
}

/* Sends signals to a reader until it has ended or has handled this many. */
static void interrupt(struct reader *reader, int flags, int most)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
	IS(sigaction(SIGUSR1, &action, NULL), 0);
	signals = 0;
	pthread_t thread;
	IS(pthread_create(&thread, NULL, read_event, reader), 0);
	double deadline = seconds() + DEADLINE_SECONDS;
	/* The first ones may arrive before the wait. */
	while (!reader->has_ended && signals < most) {
		CHECK(seconds() < deadline);
		pthread_kill(thread, SIGUSR1);
		sched_yield();
	}
	if (!reader->has_ended) {
		struct rdma_cm_id *id;
		struct sockaddr_in own = own_address(1);
		IS(rdma_create_id(reader->channel, &id, NULL, RDMA_PS_TCP), 0);
		IS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, TIMEOUT_MS), 0);
		IS(pthread_join(thread, NULL), 0);
		end(id);
	} else {
		IS(pthread_join(thread, NULL), 0);
	}
}

/* A handler with SA_RESTART lets a reader continue to wait; without it, the handler ends the
 * call. */
static void a_signal_ends_a_wait_as_its_handler_says(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct reader waits = { .channel = channel }, ends = { .channel = channel };
	interrupt(&waits, SA_RESTART, 100);
	IS(waits.result, 0);
	CHECK(signals >= 100);
	interrupt(&ends, 0, INT_MAX);
	IS(ends.result, -1);
	IS(ends.set, EINTR);

	struct reader takes = { .result = 1 };
	struct sockaddr_in own = own_address(0);
	IS(rdma_create_id(NULL, &takes.listener, NULL, RDMA_PS_TCP), 0);
	IS(rdma_bind_addr(takes.listener, (struct sockaddr *)&own), 0);
	IS(rdma_listen(takes.listener, 1), 0);
	interrupt(&takes, 0, INT_MAX);
	IS(takes.result, -1);
	IS(takes.set, EINTR);
	end(takes.listener);
	rdma_destroy_event_channel(channel);
}

static void a_service_that_rejects_says_why(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_UDP);
	struct rdma_cm_id *client = client_of(channel, RDMA_PS_UDP, ntohs(rdma_get_src_port(listener)));
	IS(rdma_connect(client, NULL), 0);
	struct rdma_cm_id *server = request_of(channel, listener);
	IS(rdma_reject(server, "not today", 9), 0);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_UNREACHABLE);
	IS(event->status, 2); /* The program rejects. */
	CHECK(event->param.ud.private_data_len >= 9);
	CHECK(!memcmp(event->param.ud.private_data, "not today", 9));
	IS(rdma_ack_cm_event(event), 0);
	end(server);
	end(client);
	end(listener);
	rdma_destroy_event_channel(channel);
}

static void ids_outlive_their_channel(void)
{
	struct connection made = connect_both();
	rdma_destroy_event_channel(made.channels[0]);
	rdma_destroy_event_channel(made.channels[1]);
	send_message(made.client, made.server, "unheard");
	end(made.client);
	end(made.server);
	end(made.listener);
}

struct waits {
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	bool has_acknowledged;
};

static void *acknowledge_late(void *argument)
{
	struct waits *waits = argument;
	double deadline = seconds() + DEADLINE_SECONDS;
	uint8_t tos = 0;
	/* The call is refused once the end of the id has begun. The struct is there until the
	 * acknowledgement. */
	while (rdma_set_option(waits->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0) {
		CHECK(seconds() < deadline);
		sched_yield();
	}
	IS(errno, EINVAL);
	CHECK(waits->event->id == waits->id && waits->id->ps == RDMA_PS_TCP && waits->id->verbs);
	waits->has_acknowledged = true;
	IS(rdma_ack_cm_event(waits->event), 0);
	return NULL;
}

static void the_end_of_an_id_waits_for_acknowledgements(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in own = own_address(1);
	struct waits waits = { 0 };
	pthread_t thread;
	IS(rdma_create_id(channel, &waits.id, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(waits.id, NULL, (struct sockaddr *)&own, TIMEOUT_MS), 0);
	waits.event = expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	IS(pthread_create(&thread, NULL, acknowledge_late, &waits), 0);
	IS(rdma_destroy_id(waits.id), 0);
	CHECK(waits.has_acknowledged);
	IS(pthread_join(thread, NULL), 0);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	rdma_destroy_event_channel(channel);
}

static void an_id_moves_with_its_events_to_another_channel(void)
{
	struct rdma_event_channel *one = rdma_create_event_channel(), *other = rdma_create_event_channel();
	struct sockaddr_in own = own_address(1);
	struct rdma_cm_id *id;
	IS(rdma_create_id(one, &id, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, TIMEOUT_MS), 0);
	CHECK(readable(one->fd, 1000 * DEADLINE_SECONDS));
	IS(rdma_migrate_id(id, other), 0);
	CHECK(id->channel == other && !readable(one->fd, 0));
	pass(other, RDMA_CM_EVENT_ADDR_RESOLVED);
	/* To a private channel: its calls wait. */
	IS(rdma_migrate_id(id, NULL), 0);
	FAILS(rdma_migrate_id(id, NULL), EINVAL);
	IS(rdma_resolve_route(id, TIMEOUT_MS), 0);
	IS(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	IS(rdma_migrate_id(id, one), 0);
	CHECK(id->event == NULL && id->channel == one);
	end(id);
	rdma_destroy_event_channel(one);
	rdma_destroy_event_channel(other);
}

static void calls_at_the_wrong_time_and_wrong_values_are_refused(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in own = own_address(0);
	struct sockaddr unknown = { .sa_family = 77 };
	struct rdma_cm_id *id, *more;
	struct ibv_qp_init_attr attr = plain_qp(IBV_QPT_RC);
	struct ibv_qp_attr qp = { .qp_state = IBV_QPS_RTR };
	int mask, on = 1;
	uint8_t tos = 8, timeout = 255;
	FAILS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_create_id(channel, &id, NULL, 7), EINVAL);
	/* The kernel's command has 16 bits for it. */
	IS(rdma_create_id(channel, &id, NULL, 0x10000 | RDMA_PS_TCP), 0);
	IS(id->ps, RDMA_PS_TCP);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, &unknown), EINVAL);
	FAILS(rdma_resolve_route(id, TIMEOUT_MS), EINVAL);
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_init_qp_attr(id, &qp, &mask), EINVAL);
	FAILS(rdma_get_request(id, &more), EINVAL);
	IS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos), 0);
	IS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout), 0);
	IS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on), 0);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof on), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof on), ENOSYS);
	FAILS(rdma_set_option(id, 99, RDMA_OPTION_ID_TOS, &tos, sizeof tos), ENOSYS);
	IS(rdma_get_dst_port(id), 0);
	IS(rdma_bind_addr(id, (struct sockaddr *)&own), 0);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&own), EINVAL);
	CHECK(id->verbs && id->pd && id->port_num == PORT);
	IS(rdma_create_qp(id, NULL, &attr), 0);
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	end(id);
	rdma_destroy_event_channel(channel);
}

static void names_are_looked_up_as_getaddrinfo_does(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *info;
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	CHECK(rdma_getaddrinfo("localhost", NULL, &hints, &info) < -1); /* EAI_NONAME */
	IS(rdma_getaddrinfo("192.0.2.1", "7471", &hints, &info), 0);
	IS(((struct sockaddr_in *)info->ai_dst_addr)->sin_port, htons(7471));
	CHECK(info->ai_src_addr == NULL && info->ai_port_space == RDMA_PS_TCP);
	rdma_freeaddrinfo(info);
	hints.ai_port_space = RDMA_PS_UDP;
	IS(rdma_getaddrinfo("192.0.2.1", NULL, &hints, &info), 0);
	IS(info->ai_qp_type, IBV_QPT_UD);
	rdma_freeaddrinfo(info);
	hints.ai_flags |= RAI_FAMILY;
	hints.ai_family = AF_IB;
	IS(rdma_getaddrinfo("fe80::2", "80", &hints, &info), 0);
	CHECK(info->ai_family == AF_IB && info->ai_dst_len == 48);
	rdma_freeaddrinfo(info);
	rdma_freeaddrinfo(NULL);
}

/* Functions that the headers of older releases lack. */
#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, #name)

static void newer_functions_and_sockets(void)
{
	FUNCTION(int, rdma_write_cm_event, struct rdma_cm_id *, unsigned, int, uint64_t);
	FUNCTION(int, rdma_resolve_addrinfo, struct rdma_cm_id *, const char *, const char *, const void *);
	FUNCTION(int, rdma_query_addrinfo, struct rdma_cm_id *, struct rdma_addrinfo **);
	FUNCTION(int, rsocket, int, int, int);
	FUNCTION(ssize_t, rrecv, int, void *, size_t, int);
	FUNCTION(int, repoll_create, int);
	enum { ADDRINFO_RESOLVED = 16, USER = 18 };
	CHECK(rdma_write_cm_event && rdma_resolve_addrinfo && rdma_query_addrinfo);
	CHECK(rsocket && rrecv && repoll_create);
	FAILS(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
	FAILS(rrecv(3, NULL, 0, 0), EOPNOTSUPP);
	FAILS(repoll_create(1), EOPNOTSUPP);

	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id;
	IS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	FAILS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	if (rdma_write_cm_event(id, USER, 5, 0x123456789) != 0) {
		/* A kernel without such events. */
		IS(errno, EINVAL);
		end(id);
		rdma_destroy_event_channel(channel);
		return;
	}
	struct rdma_cm_event *event = expect(channel, USER);
	CHECK(event->id == id && event->status == 5);
	uint64_t arg;
	memcpy(&arg, &event->param, sizeof arg);
	IS(arg, 0x123456789);
	IS(rdma_ack_cm_event(event), 0);

	FAILS(rdma_query_addrinfo(id, &info), ENOENT);
	IS(rdma_resolve_addrinfo(id, "192.0.2.1", "80", NULL), 0);
	FAILS(rdma_resolve_addrinfo(id, "192.0.2.1", "80", NULL), EBUSY);
	pass(channel, ADDRINFO_RESOLVED);
	IS(rdma_query_addrinfo(id, &info), 0);
	IS(((struct sockaddr_in *)info->ai_dst_addr)->sin_port, htons(80));
	rdma_freeaddrinfo(info);
	/* An event the program does not fetch ends with the id. */
	IS(rdma_resolve_addrinfo(id, "192.0.2.1", "80", NULL), 0);
	end(id);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_port_without_a_listener_rejects();
		a_reject_has_the_bytes_of_the_peers_program();
		a_client_that_goes_before_the_answer_leaves_the_channel_quiet();
		an_id_ends_in_each_state();
		a_channel_waits_unless_the_program_forbids_it();
		a_signal_ends_a_wait_as_its_handler_says();
		a_service_that_rejects_says_why();
		ids_outlive_their_channel();
		the_end_of_an_id_waits_for_acknowledgements();
		an_id_moves_with_its_events_to_another_channel();
		calls_at_the_wrong_time_and_wrong_values_are_refused();
		names_are_looked_up_as_getaddrinfo_does();
		newer_functions_and_sockets();
	}
	return 0;
}

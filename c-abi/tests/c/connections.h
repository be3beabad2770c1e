/* Ids of librdmacm: steps shared by the programs about connections. The peer is the device's own
 * address. */
#ifndef CONNECTIONS_H
#define CONNECTIONS_H

#include "test.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { TIMEOUT_MS = 5000 };

/* Ends the program unless a call fails with an errno. */
#define FAILS(expression, expected)                                                                \
	do {                                                                                       \
		errno = 0;                                                                         \
		int value_ = (expression);                                                         \
		int set_ = errno;                                                                  \
		if (value_ != -1 || set_ != (expected)) {                                          \
			fprintf(stderr, "%s:%d: %s is %d with errno %d (%s) rather than %s\n",     \
				__FILE__, __LINE__, #expression, value_, set_, strerror(set_),     \
				#expected);                                                        \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* The address of the device, with a port in host byte order. */
static inline struct sockaddr_in own_address(uint16_t port)
{
	static struct in_addr address;
	if (!address.s_addr) {
		struct ibv_context *context = open_device();
		union ibv_gid gid;
		IS(ibv_query_gid(context, PORT, gid_index(), &gid), 0);
		memcpy(&address, gid.raw + 12, 4);
		IS(ibv_close_device(context), 0);
	}
	struct sockaddr_in result = { .sin_family = AF_INET, .sin_addr = address };
	result.sin_port = htons(port);
	return result;
}

/* Returns the next event, which must be of this kind. */
static inline struct rdma_cm_event *expect(struct rdma_event_channel *channel, int kind)
{
	struct rdma_cm_event *event;
	CHECK(readable(channel->fd, 1000 * DEADLINE_SECONDS));
	IS(rdma_get_cm_event(channel, &event), 0);
	if ((int)event->event != kind) {
		fprintf(stderr, "connections.h: %s (%d) rather than %s\n", rdma_event_str(event->event),
			event->status, rdma_event_str((enum rdma_cm_event_type)kind));
		exit(1);
	}
	return event;
}

/* Acknowledges the next event, which must be of this kind. */
static inline void pass(struct rdma_event_channel *channel, int kind)
{
	IS(rdma_ack_cm_event(expect(channel, kind)), 0);
}

static inline struct rdma_cm_id *listener_on(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	struct sockaddr_in address = own_address(0);
	IS(rdma_create_id(channel, &id, channel, space), 0);
	IS(rdma_bind_addr(id, (struct sockaddr *)&address), 0);
	IS(rdma_listen(id, 8), 0);
	CHECK(rdma_get_src_port(id) != 0);
	return id;
}

/* An id with a route to a port of the device. */
static inline struct rdma_cm_id *client_of(struct rdma_event_channel *channel, enum rdma_port_space space,
					   uint16_t port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in address = own_address(port);
	IS(rdma_create_id(channel, &id, NULL, space), 0);
	IS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, TIMEOUT_MS), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	IS(rdma_resolve_route(id, TIMEOUT_MS), 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static inline struct ibv_qp_init_attr plain_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	return attr;
}

static inline void give_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = plain_qp(type);
	IS(rdma_create_qp(id, NULL, &attr), 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	CHECK(attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
	CHECK(id->pd && id->qp->pd == id->pd && id->qp->context == id->verbs);
	/* C's examples send 16 bytes inline without requesting inline capacity. */
	CHECK(attr.cap.max_inline_data >= 16);
}

/* Returns the id of the next request, and acknowledges the event. */
static inline struct rdma_cm_id *request_of(struct rdma_event_channel *channel, struct rdma_cm_id *listener)
{
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(event->listen_id == listener && id != listener);
	IS(rdma_ack_cm_event(event), 0);
	return id;
}

/* Both ends of a connection, on a channel each. */
struct connection {
	struct rdma_event_channel *channels[2];
	struct rdma_cm_id *listener, *server, *client;
};

static inline struct connection connect_both(void)
{
	struct connection made = { { rdma_create_event_channel(), rdma_create_event_channel() }, 0, 0, 0 };
	CHECK(made.channels[0] && made.channels[1]);
	made.listener = listener_on(made.channels[0], RDMA_PS_TCP);
	made.client = client_of(made.channels[1], RDMA_PS_TCP, ntohs(rdma_get_src_port(made.listener)));
	give_qp(made.client, IBV_QPT_RC);
	IS(rdma_connect(made.client, NULL), 0);
	made.server = request_of(made.channels[0], made.listener);
	give_qp(made.server, IBV_QPT_RC);
	IS(rdma_accept(made.server, NULL), 0);
	pass(made.channels[1], RDMA_CM_EVENT_ESTABLISHED);
	pass(made.channels[0], RDMA_CM_EVENT_ESTABLISHED);
	return made;
}

static inline void end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	IS(rdma_destroy_id(id), 0);
}

static inline void end_both(struct connection *made)
{
	end(made->client);
	end(made->server);
	end(made->listener);
	rdma_destroy_event_channel(made->channels[0]);
	rdma_destroy_event_channel(made->channels[1]);
}

/* Sends a message from one id to the other, and compares it. */
static inline void send_message(struct rdma_cm_id *from, struct rdma_cm_id *to, const char *text)
{
	char sent[64] = "", received[64] = "";
	struct ibv_mr *out = rdma_reg_msgs(from, sent, sizeof sent), *in = rdma_reg_msgs(to, received, 64);
	struct ibv_wc wc;
	CHECK(out && in);
	strcpy(sent, text);
	IS(rdma_post_recv(to, received, received, sizeof received, in), 0);
	IS(rdma_post_send(from, sent, sent, sizeof sent, out, 0), 0);
	IS(rdma_get_recv_comp(to, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)received);
	IS(rdma_get_send_comp(from, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)sent);
	CHECK(!strcmp(received, text));
	IS(rdma_dereg_mr(out), 0);
	IS(rdma_dereg_mr(in), 0);
}

#endif

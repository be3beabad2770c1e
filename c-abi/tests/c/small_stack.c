/* How much of a thread's stack calls use. Each call runs in a thread of its own, on a stack filled
 * with a pattern. VERBS_TEST_STACK is the limit in bytes, with what glibc keeps there for a thread:
 * the tests of the shipped library set it, because code that is not optimised needs far more. */
#include <sys/mman.h>

#include "connections.h"

enum { STACK = 1 << 20, PATTERN = 0xa5 };

static unsigned char *stack;
static struct ibv_device **devices;
static struct ibv_context *context;
static struct side side;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *client, *server;
static struct sockaddr_in address = { .sin_family = AF_INET };

static void list_devices(void)
{
	devices = ibv_get_device_list(NULL);
	CHECK(devices != NULL && devices[0] != NULL);
}

static void open_first(void)
{
	context = ibv_open_device(devices[0]);
	CHECK(context != NULL);
}

static void query(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	union ibv_gid gid;
	IS(ibv_query_device(context, &device), 0);
	IS(ibv_query_port(context, PORT, &port), 0);
	IS(ibv_query_gid(context, PORT, 0, &gid), 0);
}

static void create_objects(void)
{
	side = make_side(context, IBV_QPT_RC, 4096);
}

static void modify(void)
{
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
}

static void exchange(void)
{
	struct ibv_sge sge = sge_of(&side, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	post_recv(&side, 1, 64, 64);
	IS(ibv_post_send(side.qp, &wr, &bad), 0);
	success_of(side.cq);
	success_of(side.cq);
}

static void destroy_objects(void)
{
	destroy_side(&side);
	IS(ibv_close_device(context), 0);
	ibv_free_device_list(devices);
}

static void create_channel(void)
{
	channel = rdma_create_event_channel();
	CHECK(channel != NULL);
}

static void bind_and_listen(void)
{
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	IS(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	IS(rdma_bind_addr(listener, (struct sockaddr *)&address), 0);
	IS(rdma_listen(listener, 4), 0);
	address.sin_port = rdma_get_src_port(listener);
}

static void resolve_address(void)
{
	IS(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP), 0);
	IS(rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 2000), 0);
}

static void resolve_route(void)
{
	IS(rdma_resolve_route(client, 2000), 0);
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	IS(rdma_create_qp(id, NULL, &attr), 0);
}

static void request(void)
{
	struct rdma_conn_param param = { 0 };
	create_qp(client);
	IS(rdma_connect(client, &param), 0);
}

static void reply(void)
{
	struct rdma_conn_param param = { 0 };
	create_qp(server);
	IS(rdma_accept(server, &param), 0);
}

static void next_event(void)
{
	struct rdma_cm_event *event;
	IS(rdma_get_cm_event(channel, &event), 0);
	IS(event->status, 0);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		server = event->id;
	IS(rdma_ack_cm_event(event), 0);
}

static void disconnect(void)
{
	IS(rdma_disconnect(client), 0);
}

static void destroy_ids(void)
{
	struct rdma_cm_id *ids[] = { client, server, listener };
	for (int i = 0; i < 3; i++) {
		if (ids[i]->qp)
			rdma_destroy_qp(ids[i]);
		IS(rdma_destroy_id(ids[i]), 0);
	}
	rdma_destroy_event_channel(channel);
}

static void *run(void *step)
{
	(*(void (**)(void))step)();
	return NULL;
}

/* Returns the depth of the lowest byte that a call writes. */
static size_t depth_of(void (*step)(void))
{
	pthread_attr_t attr;
	pthread_t thread;
	memset(stack, PATTERN, STACK);
	IS(pthread_attr_init(&attr), 0);
	IS(pthread_attr_setstack(&attr, stack, STACK), 0);
	IS(pthread_create(&thread, &attr, run, &step), 0);
	IS(pthread_join(thread, NULL), 0);
	size_t unused = 0;
	while (unused < STACK && stack[unused] == PATTERN)
		unused++;
	return STACK - unused;
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} steps[] = {
		{ "ibv_get_device_list", list_devices },
		{ "ibv_open_device", open_first },
		{ "queries", query },
		{ "creation", create_objects },
		{ "ibv_modify_qp", modify },
		{ "posting and polling", exchange },
		{ "destruction", destroy_objects },
		{ "rdma_create_event_channel", create_channel },
		{ "rdma_bind_addr and rdma_listen", bind_and_listen },
		{ "rdma_resolve_addr", resolve_address },
		{ "rdma_get_cm_event: address", next_event },
		{ "rdma_resolve_route", resolve_route },
		{ "rdma_get_cm_event: route", next_event },
		{ "rdma_connect", request },
		{ "rdma_get_cm_event: request", next_event },
		{ "rdma_accept", reply },
		{ "rdma_get_cm_event: established", next_event },
		{ "rdma_get_cm_event: established", next_event },
		{ "rdma_disconnect", disconnect },
		{ "rdma_get_cm_event: disconnected", next_event },
		{ "rdma_destroy_id", destroy_ids },
	};
	const char *limit = getenv("VERBS_TEST_STACK");
	size_t most = limit ? strtoul(limit, NULL, 10) : STACK - 1, count = sizeof steps / sizeof *steps;
	stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stack != MAP_FAILED);
	for (size_t i = 0; i < count; i++) {
		size_t depth = depth_of(steps[i].run);
		printf("%6zu %s\n", depth, steps[i].name);
		if (depth > most) {
			fprintf(stderr, "small_stack.c: %s uses %zu bytes of the stack rather than %zu\n",
				steps[i].name, depth, most);
			return 1;
		}
	}
	return 0;
}

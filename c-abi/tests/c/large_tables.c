/* Tables that grow with what a program does, or with what its peers do, while the allocator has no
 * piece above 16 KiB, as in a process whose memory is left in pieces. Each call works or fails with
 * ENOMEM, and the process survives. */
#include "connections.h"

#include <stdint.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Allocations above this size fail. */
static _Atomic size_t limit = SIZE_MAX;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static bool fails(size_t size)
{
	if (size <= limit)
		return false;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t size)
{
	return fails(size) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return size && fails(count * size) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	return fails(size) ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return fails(size) ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **made, size_t alignment, size_t size)
{
	*made = fails(size) ? NULL : __libc_memalign(alignment, size);
	return *made ? 0 : ENOMEM;
}

static struct ibv_context *context;

/* Advice about more regions than a piece has room for. */
static void advice(void)
{
	static struct ibv_sge list[4000];
	struct side side = make_side(context, IBV_QPT_RC, 4096);
	struct ibv_mr *mr = ibv_reg_mr(side.pd, side.memory, side.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	CHECK(mr != NULL);
	for (int i = 0; i < 4000; i++)
		list[i] = (struct ibv_sge){ (uintptr_t)side.memory, 64, mr->lkey };
	limit = 16384;
	int result = ibv_advise_mr(side.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, list, 4000);
	limit = SIZE_MAX;
	IS_ONE_OF(result, ENOMEM, EOPNOTSUPP);
	IS_ONE_OF(ibv_advise_mr(side.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, list, 4000), 0, EOPNOTSUPP);
	IS(ibv_dereg_mr(mr), 0);
	destroy_side(&side);
}

/* Groups of one queue pair. */
static void groups(void)
{
	struct side side = make_side(context, IBV_QPT_UD, 4096);
	int joined = 0, result = 0;
	to_init(side.qp);
	limit = 16384;
	while (joined < 600) {
		union ibv_gid gid = { .raw = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 1, joined >> 8, joined } };
		result = ibv_attach_mcast(side.qp, &gid, 0);
		if (result)
			break;
		joined++;
	}
	limit = SIZE_MAX;
	CHECK(joined > 0);
	/* A device may have fewer groups. */
	IS_ONE_OF(result, ENOMEM, joined == 600 ? 0 : result);
	destroy_side(&side);
}

/* Open devices. */
static void devices(void)
{
	enum { MOST = 1100 };
	static struct ibv_context *opened[MOST];
	int count = 0;
	limit = 16384;
	while (count < MOST && (opened[count] = ibv_open_device(context->device)))
		count++;
	int error = errno;
	limit = SIZE_MAX;
	if (count < MOST)
		IS_ONE_OF(error, ENOMEM, EMFILE);
	while (count > 0)
		IS(ibv_close_device(opened[--count]), 0);
}

/* Events that the program does not read, and requests that it does not read. */
static void events(void)
{
	enum { MOST = 400 };
	static struct rdma_cm_id *ids[MOST];
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	struct sockaddr_in address = own_address(ntohs(rdma_get_src_port(listener)));
	int resolved = 0;
	for (int i = 0; i < MOST; i++)
		IS(rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP), 0);
	limit = 16384;
	while (resolved < MOST && !rdma_resolve_addr(ids[resolved], NULL, (struct sockaddr *)&address, 2000))
		resolved++;
	int error = errno;
	limit = SIZE_MAX;
	if (resolved < MOST)
		IS(error, ENOMEM);
	/* No event of a call that succeeded is lost. */
	for (int i = 0; i < resolved; i++) {
		struct rdma_cm_event *event;
		IS(rdma_get_cm_event(channel, &event), 0);
		IS(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
		IS(rdma_ack_cm_event(event), 0);
	}
	for (int i = 0; i < MOST; i++)
		IS(rdma_destroy_id(ids[i]), 0);
	IS(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(channel);
}

/* Ids that share a port. Binding begins only where 64 KiB are left in one piece. */
static void ports(void)
{
	enum { MOST = 2500 };
	static struct rdma_cm_id *ids[MOST];
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in address = own_address(4791);
	int bound = 1, on = 1;
	for (int i = 0; i < MOST; i++) {
		IS(rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP), 0);
		IS(rdma_set_option(ids[i], RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on), 0);
	}
	/* The first one opens the device. */
	IS(rdma_bind_addr(ids[0], (struct sockaddr *)&address), 0);
	limit = 65536;
	while (bound < MOST && !rdma_bind_addr(ids[bound], (struct sockaddr *)&address))
		bound++;
	int error = errno;
	limit = SIZE_MAX;
	if (bound < MOST)
		IS(error, ENOMEM);
	for (int i = 0; i < MOST; i++)
		IS(rdma_destroy_id(ids[i]), 0);
	rdma_destroy_event_channel(channel);
}

/* Stops this process for some seconds, so that all timers of that time expire at once. */
static void stop_for(int seconds)
{
	pid_t own = getpid(), child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		kill(own, SIGSTOP);
		sleep(seconds);
		_exit(kill(own, SIGCONT));
	}
	int status;
	IS(waitpid(child, &status, 0), child);
	IS(status, 0);
}

/* Timers of many connections that expire at once. */
static void timers(void)
{
	enum { MOST = 100 };
	static struct rdma_cm_id *ids[2 * MOST];
	struct rdma_event_channel *channels[] = { rdma_create_event_channel(), rdma_create_event_channel() };
	struct rdma_cm_id *listener = listener_on(channels[0], RDMA_PS_TCP);
	for (int i = 0; i < MOST; i++) {
		struct rdma_conn_param param = { .qp_num = 100 + i };
		struct rdma_cm_id *client = client_of(channels[1], RDMA_PS_TCP, ntohs(rdma_get_src_port(listener)));
		IS(rdma_connect(client, &param), 0);
		struct rdma_cm_id *server = request_of(channels[0], listener);
		param.qp_num += MOST;
		IS(rdma_accept(server, &param), 0);
		pass(channels[1], RDMA_CM_EVENT_CONNECT_RESPONSE);
		IS(rdma_establish(client), 0);
		pass(channels[0], RDMA_CM_EVENT_ESTABLISHED);
		ids[2 * i] = client;
		ids[2 * i + 1] = server;
	}
	limit = 16384;
	for (int i = 0; i < 2 * MOST; i++)
		IS(rdma_disconnect(ids[i]), 0);
	stop_for(3);
	/* Each id is disconnected and then leaves its time-wait state. Ids overtake each other. */
	for (int i = 0; i < 2 * MOST; i++)
		ids[i]->context = NULL;
	for (int side = 0; side < 2; side++) {
		for (int i = 0; i < 2 * MOST; i++) {
			struct rdma_cm_event *event;
			IS(rdma_get_cm_event(channels[side], &event), 0);
			bool disconnected = event->id->context;
			IS(event->event, disconnected ? RDMA_CM_EVENT_TIMEWAIT_EXIT : RDMA_CM_EVENT_DISCONNECTED);
			event->id->context = event->id;
			IS(rdma_ack_cm_event(event), 0);
		}
	}
	limit = SIZE_MAX;
	for (int i = 0; i < 2 * MOST; i++)
		IS(rdma_destroy_id(ids[i]), 0);
	IS(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(channels[0]);
	rdma_destroy_event_channel(channels[1]);
}

int main(void)
{
	struct rlimit files;
	IS(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	IS(setrlimit(RLIMIT_NOFILE, &files), 0);
	context = open_device();
	advice();
	groups();
	devices();
	events();
	ports();
	timers();
	struct side side = make_side(context, IBV_QPT_RC, 4096);
	to_init(side.qp);
	connect_qp(side.qp, side.qp->qp_num);
	loop_message(&side);
	success_of(side.cq);
	success_of(side.cq);
	destroy_side(&side);
	IS(ibv_close_device(context), 0);
	return 0;
}

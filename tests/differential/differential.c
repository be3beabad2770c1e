/* Runs a script of work requests on one device and prints everything that it observes, so that runs
 * on two libraries can be compared, in their output and in the trace of the ConnectX model.
 *
 * differential DEVICE GID_INDEX TRANSPORT API SCRIPT [SEED COUNT]
 *
 *   TRANSPORT  rc, uc, ud, xrc, srq (RC with a shared receive queue)
 *   API        post (ibv_post_send, ibv_poll_cq) or wr (ibv_wr_..., ibv_start_poll)
 *   SCRIPT     shapes   each operation in each shape, signalled or not, alone or in a list
 *              wraps    long operations from each place of the send queue
 *              windows  binds and invalidations
 *              events   armed completion queues
 *              errors   failed requests, flushes, and a queue pair's second life
 *              refusals requests that the library rejects
 *              random   COUNT operations from SEED
 *
 * Everything that a trace shows is the same in each run: data is at fixed addresses, sequence
 * numbers are constants, and a list of requests is completed before the next is posted. A GID_INDEX
 * of -1 means paths without a GRH. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			int error_ = errno;                                                        \
			fflush(stdout);                                                            \
			fprintf(stderr, "differential.c:%d: not true: %s (errno %d, %s)\n",        \
				__LINE__, #condition, error_, strerror(error_));                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

enum {
	PORT = 1,
	HALF = 256 << 10,
	DEADLINE_SECONDS = 60,
	QKEY = 0x1234,
	SENDS = 8,
	RECEIVES = 16,
	SGES = 3,
	BATCH = 6,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
};

static uint8_t *const MEMORY = (uint8_t *)0x200000000000;
static const uint32_t BAD_KEY = 0xdead0000;

enum transport { RC, UC, UD, XRC, SRQ };
enum kind { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, SWAP, ADD, KINDS };

static const char *const KIND_NAMES[] = { "send",      "send_imm", "send_inv", "write",
					  "write_imm", "read",     "swap",     "add" };

/* A list of lengths; the rest is gathered from consecutive addresses with gaps. */
struct shape {
	int count;
	uint32_t lengths[SGES];
};

static const struct shape LISTS[] = {
	{ 1, { 8 } },	       { 1, { 1 } },	    { 1, { 1000 } },	  { 2, { 17, 3 } },
	{ 3, { 64, 128, 32 } }, { 3, { 5, 0, 7 } }, { 1, { 0 } },	  { 0, { 0 } },
	{ 3, { 0, 0, 9 } },    { 2, { 512, 300 } },
};

static const struct shape INLINES[] = {
	{ 1, { 1 } },	 { 1, { 8 } },	      { 1, { 12 } },	    { 1, { 13 } }, { 1, { 28 } },
	{ 1, { 29 } },	 { 2, { 10, 20 } },   { 3, { 7, 0, 40 } },  { 1, { 60 } }, { 1, { 64 } },
	{ 1, { 0 } },	 { 0, { 0 } },
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

struct request {
	enum kind kind;
	struct shape shape;
	bool is_inline, is_signalled, is_solicited, has_fence;
	uint32_t rkey, invalidates; /* 0: the usual one */
};

static struct {
	enum transport transport;
	bool has_wr_api, signals_all, has_data_in_completions;
	int gid_index;
	struct ibv_context *context;
	struct ibv_port_attr port;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *local, *remote;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *sender, *receiver;
	struct ibv_ah *ah;
	uint32_t max_inline;
	uint64_t next_id, next_receive;
	unsigned posted_receives;
} w;

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Setup. */

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list != NULL);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			w.context = ibv_open_device(list[i]);
	CHECK(w.context != NULL);
	ibv_free_device_list(list);
	CHECK(ibv_query_port(w.context, PORT, &w.port) == 0);
}

static struct ibv_cq *create_cq(void)
{
	struct ibv_cq *cq;
	if (w.has_wr_api) {
		struct ibv_cq_init_attr_ex attr = {
			.cqe = 60,
			.channel = w.channel,
			.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
				    IBV_WC_EX_WITH_SRC_QP,
		};
		struct ibv_cq_ex *ex = ibv_create_cq_ex(w.context, &attr);
		CHECK(ex != NULL);
		cq = ibv_cq_ex_to_cq(ex);
	} else {
		cq = ibv_create_cq(w.context, 60, NULL, w.channel, 0);
	}
	CHECK(cq != NULL);
	printf("cq of %d\n", cq->cqe);
	return cq;
}

/* All operations of a transport: libmlx5 sizes the send queue by the longest one asked for. */
static uint64_t operations(enum ibv_qp_type type)
{
	uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	if (type == IBV_QPT_UD)
		return ops;
	ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
	       IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
	if (type == IBV_QPT_UC)
		return ops;
	return ops | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
	       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
}

static struct ibv_qp *create_qp(enum ibv_qp_type type, struct ibv_srq *srq)
{
	bool sends = type != IBV_QPT_XRC_RECV, receives = type != IBV_QPT_XRC_RECV && type != IBV_QPT_XRC_SEND;
	struct ibv_qp_init_attr_ex attr = { .qp_type = type, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = w.pd };
	attr.sq_sig_all = w.signals_all;
	if (sends) {
		attr.send_cq = w.send_cq;
		attr.cap.max_send_wr = SENDS;
		attr.cap.max_send_sge = SGES;
		attr.cap.max_inline_data = 64;
		if (w.has_wr_api) {
			attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
			attr.send_ops_flags = operations(type);
		}
	}
	if (receives) {
		attr.recv_cq = w.recv_cq;
		attr.srq = srq;
		if (!srq) {
			attr.cap.max_recv_wr = RECEIVES;
			attr.cap.max_recv_sge = SGES;
		}
	}
	if (type == IBV_QPT_XRC_RECV) {
		attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
		attr.xrcd = w.xrcd;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(w.context, &attr);
	CHECK(qp != NULL);
	printf("qp of type %d: %u sends of %u, %u inline, %u receives of %u\n", type, attr.cap.max_send_wr,
	       attr.cap.max_send_sge, attr.cap.max_inline_data, attr.cap.max_recv_wr, attr.cap.max_recv_sge);
	if (sends)
		w.max_inline = attr.cap.max_inline_data;
	return qp;
}

static struct ibv_ah_attr own_path(void)
{
	struct ibv_ah_attr path = { .port_num = PORT, .dlid = w.port.lid };
	if (w.gid_index >= 0) {
		path.is_global = 1;
		path.grh.sgid_index = (uint8_t)w.gid_index;
		path.grh.hop_limit = 64;
		/* The UDP port follows from it; without, it is random or depends on the queue pairs' numbers. */
		path.grh.flow_label = 0x12345;
		CHECK(ibv_query_gid(w.context, PORT, w.gid_index, &path.grh.dgid) == 0);
	}
	return path;
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.qkey = QKEY,
	};
	if (qp->qp_type == IBV_QPT_UC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	enum ibv_qp_type type = qp->qp_type;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = 100,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = own_path(),
	};
	int mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	if (type == IBV_QPT_XRC_RECV)
		return;
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 100;
	/* Retries would depend on time. */
	attr.timeout = 0;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void connect_qps(void)
{
	to_init(w.sender);
	to_init(w.receiver);
	to_rts(w.receiver, w.sender->qp_num);
	to_rts(w.sender, w.receiver->qp_num);
	w.posted_receives = 0;
}

static void create_qps(void)
{
	static const enum ibv_qp_type TYPES[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND,
						  IBV_QPT_RC };
	enum ibv_qp_type type = TYPES[w.transport];
	w.sender = create_qp(type, NULL);
	w.receiver = create_qp(w.transport == XRC ? IBV_QPT_XRC_RECV : type, w.srq);
	connect_qps();
}

static void destroy_qps(void)
{
	CHECK(ibv_destroy_qp(w.sender) == 0);
	CHECK(ibv_destroy_qp(w.receiver) == 0);
}

static void create_world(void)
{
	void *at = mmap(MEMORY, 2 * HALF, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(at == MEMORY);
	w.pd = ibv_alloc_pd(w.context);
	CHECK(w.pd != NULL);
	w.local = ibv_reg_mr(w.pd, MEMORY, HALF, ACCESS);
	w.remote = ibv_reg_mr(w.pd, MEMORY + HALF, HALF, ACCESS);
	CHECK(w.local != NULL && w.remote != NULL);
	w.channel = ibv_create_comp_channel(w.context);
	CHECK(w.channel != NULL);
	w.send_cq = create_cq();
	w.recv_cq = create_cq();
	if (w.transport == XRC) {
		struct ibv_xrcd_init_attr domain = {
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
			.fd = -1,
			.oflags = O_CREAT,
		};
		w.xrcd = ibv_open_xrcd(w.context, &domain);
		CHECK(w.xrcd != NULL);
		struct ibv_srq_init_attr_ex attr = {
			.attr = { .max_wr = RECEIVES - 1, .max_sge = SGES },
			.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
				     IBV_SRQ_INIT_ATTR_PD,
			.srq_type = IBV_SRQT_XRC,
			.pd = w.pd,
			.xrcd = w.xrcd,
			.cq = w.recv_cq,
		};
		w.srq = ibv_create_srq_ex(w.context, &attr);
		CHECK(w.srq != NULL);
		printf("srq of %u of %u\n", attr.attr.max_wr, attr.attr.max_sge);
	} else if (w.transport == SRQ) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = RECEIVES - 1, .max_sge = SGES } };
		w.srq = ibv_create_srq(w.pd, &attr);
		CHECK(w.srq != NULL);
		printf("srq of %u of %u\n", attr.attr.max_wr, attr.attr.max_sge);
	}
	create_qps();
	if (w.transport == UD) {
		struct ibv_ah_attr path = own_path();
		w.ah = ibv_create_ah(w.pd, &path);
		CHECK(w.ah != NULL);
	}
}

static void destroy_world(void)
{
	if (w.ah)
		CHECK(ibv_destroy_ah(w.ah) == 0);
	destroy_qps();
	if (w.srq)
		CHECK(ibv_destroy_srq(w.srq) == 0);
	if (w.xrcd)
		CHECK(ibv_close_xrcd(w.xrcd) == 0);
	CHECK(ibv_destroy_cq(w.send_cq) == 0);
	CHECK(ibv_destroy_cq(w.recv_cq) == 0);
	CHECK(ibv_destroy_comp_channel(w.channel) == 0);
	CHECK(ibv_dereg_mr(w.local) == 0);
	CHECK(ibv_dereg_mr(w.remote) == 0);
	CHECK(ibv_dealloc_pd(w.pd) == 0);
	CHECK(ibv_close_device(w.context) == 0);
}

/* Completions. */

static void print_qp(uint32_t number)
{
	const char *name = number == w.sender->qp_num	? "sender"
			   : number == w.receiver->qp_num ? "receiver"
							  : "another";
	printf(" qp=%s", name);
}

static void print_success(int opcode, uint32_t bytes, unsigned flags, __be32 imm, uint32_t key,
			  uint32_t source)
{
	printf(" opcode=%d", opcode);
	if (opcode & IBV_WC_RECV || opcode == IBV_WC_RDMA_READ)
		printf(" bytes=%u", bytes);
	/* libmlx5 takes it from a field that the data has replaced. */
	if (w.has_data_in_completions)
		flags &= ~IBV_WC_GRH;
	/* Without a meaning in completions of sends. */
	if (!(opcode & IBV_WC_RECV))
		return;
	printf(" flags=%#x", flags);
	if (flags & IBV_WC_WITH_IMM)
		printf(" imm=%#x", imm);
	if (flags & IBV_WC_WITH_INV)
		printf(" inv=%s", key == w.remote->rkey ? "remote" : "window");
	if (w.transport == UD)
		printf(" source=%s", source == w.sender->qp_num ? "sender" : "another");
}

/* Waits for one completion and prints it. */
static void completion(struct ibv_cq *cq, const char *queue)
{
	double deadline = seconds() + DEADLINE_SECONDS;
	if (w.has_wr_api) {
		struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
		struct ibv_poll_cq_attr attr = { 0 };
		int error;
		while ((error = ibv_start_poll(ex, &attr)) == ENOENT)
			CHECK(seconds() < deadline);
		CHECK(error == 0);
		printf("%s %llu status=%d", queue, (unsigned long long)ex->wr_id, ex->status);
		print_qp(ibv_wc_read_qp_num(ex));
		if (ex->status == IBV_WC_SUCCESS) {
			int opcode = ibv_wc_read_opcode(ex);
			print_success(opcode, ibv_wc_read_byte_len(ex), ibv_wc_read_wc_flags(ex),
				      ibv_wc_read_imm_data(ex), ibv_wc_read_invalidated_rkey(ex),
				      ibv_wc_read_src_qp(ex));
		} else {
			printf(" vendor=%#x", ibv_wc_read_vendor_err(ex));
		}
		ibv_end_poll(ex);
	} else {
		struct ibv_wc wc;
		int count;
		while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
			CHECK(seconds() < deadline);
		CHECK(count == 1);
		printf("%s %llu status=%d", queue, (unsigned long long)wc.wr_id, wc.status);
		print_qp(wc.qp_num);
		if (wc.status == IBV_WC_SUCCESS)
			print_success(wc.opcode, wc.byte_len, wc.wc_flags, wc.imm_data, wc.invalidated_rkey,
				      wc.src_qp);
		else
			printf(" vendor=%#x", wc.vendor_err);
	}
	printf("\n");
}

static void no_completion(struct ibv_cq *cq)
{
	if (w.has_wr_api) {
		struct ibv_poll_cq_attr attr = { 0 };
		CHECK(ibv_start_poll((struct ibv_cq_ex *)cq, &attr) == ENOENT);
	} else {
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	}
}

/* Requests. */

/* Addresses of request number `place` of a list: pieces have gaps of 16 bytes. */
static uint8_t *local_of(int place)
{
	return MEMORY + 64 + place * 4096;
}

static uint8_t *remote_of(int place)
{
	return MEMORY + HALF + 64 + place * 4096;
}

static int gather(const struct request *request, int place, struct ibv_sge *list)
{
	uint8_t *at = local_of(place);
	for (int i = 0; i < request->shape.count; i++) {
		list[i] = (struct ibv_sge){ (uintptr_t)at, request->shape.lengths[i], w.local->lkey };
		at += request->shape.lengths[i] + 16;
	}
	return request->shape.count;
}

static bool takes_receive(enum kind kind)
{
	return kind <= SEND_INV || kind == WRITE_IMM;
}

static unsigned flags_of(const struct request *request)
{
	return (request->is_signalled ? IBV_SEND_SIGNALED : 0) | (request->is_inline ? IBV_SEND_INLINE : 0) |
	       (request->is_solicited ? IBV_SEND_SOLICITED : 0) | (request->has_fence ? IBV_SEND_FENCE : 0);
}

static uint32_t rkey_of(const struct request *request)
{
	return request->rkey ? request->rkey : w.remote->rkey;
}

static __be32 imm_of(uint64_t id)
{
	return (__be32)(0xabcd0000 + id);
}

/* A list of receives, whose scatter lists vary from request to request. */
static int post_receives(int count)
{
	struct ibv_sge lists[BATCH][SGES];
	struct ibv_recv_wr requests[BATCH], *bad = NULL;
	for (int i = 0; i < count; i++) {
		uint64_t id = w.next_receive++;
		int pieces = 1 + (int)(id % SGES);
		for (int k = 0; k < pieces; k++)
			lists[i][k] = (struct ibv_sge){
				(uintptr_t)(MEMORY + HALF + (128 << 10) + i * 8192 + k * 2048),
				k + 1 == pieces ? 2048 : 40u * (unsigned)(k + 1), w.remote->lkey
			};
		requests[i] = (struct ibv_recv_wr){ .wr_id = id,
						    .next = i + 1 < count ? &requests[i + 1] : NULL,
						    .sg_list = lists[i],
						    .num_sge = pieces };
	}
	return w.srq ? ibv_post_srq_recv(w.srq, requests, &bad) : ibv_post_recv(w.receiver, requests, &bad);
}

static int post_classic(const struct request *requests, int count)
{
	static const enum ibv_wr_opcode OPCODES[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_FETCH_AND_ADD
	};
	struct ibv_sge lists[BATCH][SGES + 1];
	struct ibv_send_wr wrs[BATCH], *bad = NULL;
	memset(wrs, 0, sizeof wrs);
	for (int i = 0; i < count; i++) {
		const struct request *request = &requests[i];
		struct ibv_send_wr *wr = &wrs[i];
		wr->wr_id = w.next_id++;
		wr->next = i + 1 < count ? &wrs[i + 1] : NULL;
		wr->sg_list = lists[i];
		wr->num_sge = gather(request, i, lists[i]);
		wr->opcode = OPCODES[request->kind];
		wr->send_flags = flags_of(request);
		if (request->kind == SEND_IMM || request->kind == WRITE_IMM)
			wr->imm_data = imm_of(wr->wr_id);
		else if (request->kind == SEND_INV)
			wr->invalidate_rkey = request->invalidates;
		if (w.transport == UD) {
			wr->wr.ud.ah = w.ah;
			wr->wr.ud.remote_qpn = w.receiver->qp_num;
			wr->wr.ud.remote_qkey = QKEY;
		} else if (request->kind == SWAP || request->kind == ADD) {
			wr->wr.atomic.remote_addr = (uintptr_t)remote_of(i);
			wr->wr.atomic.rkey = rkey_of(request);
			wr->wr.atomic.compare_add = 0x1111 + (uint64_t)i;
			wr->wr.atomic.swap = request->kind == SWAP ? 0x2222 : 0;
		} else {
			wr->wr.rdma.remote_addr = (uintptr_t)remote_of(i);
			wr->wr.rdma.rkey = rkey_of(request);
		}
		if (w.transport == XRC) {
			uint32_t number;
			CHECK(ibv_get_srq_num(w.srq, &number) == 0);
			wr->qp_type.xrc.remote_srqn = number;
		}
	}
	int error = ibv_post_send(w.sender, wrs, &bad);
	if (error)
		printf("refused at %d\n", (int)(bad - wrs));
	return error;
}

static void build(struct ibv_qp_ex *ex, const struct request *request, int place)
{
	uint64_t at = (uintptr_t)remote_of(place);
	uint32_t rkey = rkey_of(request);
	ex->wr_id = w.next_id++;
	ex->wr_flags = flags_of(request) & ~(unsigned)IBV_SEND_INLINE;
	switch (request->kind) {
	case SEND: ibv_wr_send(ex); break;
	case SEND_IMM: ibv_wr_send_imm(ex, imm_of(ex->wr_id)); break;
	case SEND_INV: ibv_wr_send_inv(ex, request->invalidates); break;
	case WRITE: ibv_wr_rdma_write(ex, rkey, at); break;
	case WRITE_IMM: ibv_wr_rdma_write_imm(ex, rkey, at, imm_of(ex->wr_id)); break;
	case READ: ibv_wr_rdma_read(ex, rkey, at); break;
	case SWAP: ibv_wr_atomic_cmp_swp(ex, rkey, at, 0x1111 + (uint64_t)place, 0x2222); break;
	default: ibv_wr_atomic_fetch_add(ex, rkey, at, 0x1111 + (uint64_t)place); break;
	}
	if (w.transport == UD)
		ibv_wr_set_ud_addr(ex, w.ah, w.receiver->qp_num, QKEY);
	if (w.transport == XRC) {
		uint32_t number;
		CHECK(ibv_get_srq_num(w.srq, &number) == 0);
		ibv_wr_set_xrc_srqn(ex, number);
	}
	struct ibv_sge list[SGES + 1];
	int count = gather(request, place, list);
	if (request->is_inline && count == 1) {
		ibv_wr_set_inline_data(ex, (void *)(uintptr_t)list[0].addr, list[0].length);
	} else if (request->is_inline) {
		struct ibv_data_buf bufs[SGES + 1];
		for (int i = 0; i < count; i++)
			bufs[i] = (struct ibv_data_buf){ (void *)(uintptr_t)list[i].addr, list[i].length };
		ibv_wr_set_inline_data_list(ex, (size_t)count, bufs);
	} else if (count == 1) {
		ibv_wr_set_sge(ex, list[0].lkey, list[0].addr, list[0].length);
	} else {
		ibv_wr_set_sge_list(ex, (size_t)count, list);
	}
}

static int post_wr(const struct request *requests, int count)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(w.sender);
	ibv_wr_start(ex);
	for (int i = 0; i < count; i++)
		build(ex, &requests[i], i);
	int error = ibv_wr_complete(ex);
	if (error)
		printf("refused\n");
	return error;
}

static int post(const struct request *requests, int count)
{
	return w.has_wr_api ? post_wr(requests, count) : post_classic(requests, count);
}

static void fill(uint64_t seed)
{
	for (int place = 0; place < BATCH; place++)
		for (int i = 0; i < 1536; i++) {
			local_of(place)[i] = (uint8_t)(seed + (uint64_t)(place * 31 + i * 7));
			remote_of(place)[i] = (uint8_t)(seed * 3 + (uint64_t)(place * 17 + i * 5));
		}
}

static void print_memory(void)
{
	uint64_t hash = 0xcbf29ce484222325;
	for (int place = 0; place < BATCH; place++) {
		const uint8_t *areas[] = { local_of(place), remote_of(place),
					   MEMORY + HALF + (128 << 10) + place * 8192 };
		for (int area = 0; area < 3; area++)
			for (int i = 0; i < 2304; i++)
				hash = (hash ^ areas[area][i]) * 0x100000001b3;
	}
	printf("memory %016llx\n", (unsigned long long)hash);
}

/* Posts a list, whose last request has a completion, and waits for all completions. */
static void run(const struct request *requests, int count)
{
	int receives = 0, completions = 0;
	for (int i = 0; i < count; i++) {
		receives += takes_receive(requests[i].kind);
		completions += requests[i].is_signalled;
	}
	CHECK(requests[count - 1].is_signalled);
	if (receives)
		CHECK(post_receives(receives) == 0);
	fill(w.next_id);
	CHECK(post(requests, count) == 0);
	for (int i = 0; i < completions; i++)
		completion(w.send_cq, "send");
	for (int i = 0; i < receives; i++)
		completion(w.recv_cq, "recv");
	print_memory();
}

static const struct shape EIGHT = { 1, { 8 } };

/* A short request that every transport has. */
static struct request filler(void)
{
	return (struct request){ .kind = w.transport == UD ? SEND : WRITE, .shape = EIGHT, .is_signalled = true };
}

static bool is_supported(enum kind kind)
{
	switch (w.transport) {
	case UD: return kind <= SEND_IMM;
	case UC: return kind <= SEND_IMM || kind == WRITE || kind == WRITE_IMM;
	default: return kind != SEND_INV; /* script `windows` */
	}
}

static bool may_be_inline(enum kind kind)
{
	return kind < READ;
}

static bool is_atomic(enum kind kind)
{
	return kind == SWAP || kind == ADD;
}

/* A request alone, in a list, and without a completion of its own. */
static void each_way(struct request request)
{
	struct request list[3] = { request, request, request };
	printf("# %s%s of %d: %u %u %u\n", KIND_NAMES[request.kind], request.is_inline ? " inline" : "",
	       request.shape.count, request.shape.lengths[0], request.shape.lengths[1],
	       request.shape.lengths[2]);
	list[0].is_signalled = true;
	run(list, 1);
	list[0].is_signalled = false;
	list[1].is_signalled = true;
	run(list, 2);
	list[0].is_signalled = true;
	list[2] = filler();
	run(list, 3);
	/* Rung by itself, and retired by the completion of the next one. */
	list[0].is_signalled = false;
	if (takes_receive(request.kind))
		CHECK(post_receives(1) == 0);
	fill(w.next_id);
	CHECK(post(list, 1) == 0);
	run(&list[2], 1);
	if (takes_receive(request.kind))
		completion(w.recv_cq, "recv");
}

static void shapes(void)
{
	for (int kind = 0; kind < KINDS; kind++) {
		if (!is_supported(kind))
			continue;
		for (size_t i = 0; i < LENGTH(LISTS); i++)
			if (!is_atomic(kind) || i == 0)
				each_way((struct request){ .kind = kind, .shape = LISTS[i] });
		if (may_be_inline(kind)) {
			for (size_t i = 0; i < LENGTH(INLINES); i++)
				each_way((struct request){ .kind = kind, .shape = INLINES[i], .is_inline = true });
			struct shape longest = { 1, { w.max_inline } };
			each_way((struct request){ .kind = kind, .shape = longest, .is_inline = true });
		}
		if (w.transport != UD && w.transport != UC)
			each_way((struct request){ .kind = kind, .shape = EIGHT, .has_fence = true });
		each_way((struct request){ .kind = kind, .shape = EIGHT, .is_solicited = true });
	}
}

/* Long requests, with an odd and with an even number of blocks before the next one: one of both
 * starts at each block of the queue. */
static void wraps(void)
{
	const struct shape longest = { 1, { w.max_inline } }, most = { 3, { 33, 65, 129 } };
	for (int kind = 0; kind < KINDS; kind++) {
		if (!is_supported(kind))
			continue;
		struct request requests[2] = { { .kind = kind, .shape = is_atomic(kind) ? EIGHT : most },
					       { .kind = kind, .shape = longest, .is_inline = true } };
		for (int variant = 0; variant < (may_be_inline(kind) ? 2 : 1); variant++) {
			struct request list[2] = { requests[variant], filler() };
			for (int i = 0; i < 66; i++) {
				list[0].is_signalled = true;
				run(list, 1);
			}
			for (int i = 0; i < 66; i++) {
				list[0].is_signalled = i % 2;
				run(list, 2);
			}
		}
	}
}

static void bind(struct ibv_mw *window, uint32_t rkey, uint64_t length, bool is_alone)
{
	unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mw_bind_info info = { w.remote, (uintptr_t)remote_of(0), length, access };
	if (w.has_wr_api) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(w.receiver);
		ibv_wr_start(ex);
		ex->wr_id = w.next_id++;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_bind_mw(ex, window, rkey, &info);
		CHECK(ibv_wr_complete(ex) == 0);
	} else {
		struct ibv_sge sge = { (uintptr_t)local_of(0), 8, w.local->lkey };
		struct ibv_send_wr *bad,
			next = { .wr_id = w.next_id + 1, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = { (uintptr_t)MEMORY + 8192, w.local->rkey } },
			wr = { .wr_id = w.next_id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
			       .next = is_alone ? NULL : &next,
			       .bind_mw = { .mw = window, .rkey = rkey, .bind_info = info } };
		w.next_id += 2;
		CHECK(ibv_post_send(w.receiver, &wr, &bad) == 0);
		if (!is_alone)
			completion(w.send_cq, "send");
	}
	completion(w.send_cq, "send");
	/* The program keeps the window's current key. */
	window->rkey = rkey;
}

static void invalidate(uint32_t rkey)
{
	if (w.has_wr_api) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(w.receiver);
		ibv_wr_start(ex);
		ex->wr_id = w.next_id++;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_local_inv(ex, rkey);
		CHECK(ibv_wr_complete(ex) == 0);
	} else {
		struct ibv_send_wr *bad, wr = { .wr_id = w.next_id++, .opcode = IBV_WR_LOCAL_INV,
						.send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey };
		CHECK(ibv_post_send(w.receiver, &wr, &bad) == 0);
	}
	completion(w.send_cq, "send");
}

/* The receiver binds windows, which the sender uses. */
static void windows(void)
{
	struct ibv_mw *window = ibv_alloc_mw(w.pd, IBV_MW_TYPE_2);
	CHECK(window != NULL);
	uint32_t rkey = window->rkey;
	/* More often than the queue has blocks: a bind starts at each. */
	for (int i = 0; i < 70; i++) {
		rkey = ibv_inc_rkey(rkey);
		bind(window, rkey, 512, i % 2);
		struct request write = { .kind = WRITE, .shape = EIGHT, .is_signalled = true, .rkey = rkey };
		run(&write, 1);
		if (i % 3) {
			invalidate(rkey);
		} else {
			struct request send = { .kind = SEND_INV, .shape = LISTS[(unsigned)i % LENGTH(LISTS)],
						.is_signalled = true, .invalidates = rkey };
			run(&send, 1);
		}
	}
	CHECK(ibv_dealloc_mw(window) == 0);
	if (w.has_wr_api)
		return;
	window = ibv_alloc_mw(w.pd, IBV_MW_TYPE_1);
	CHECK(window != NULL);
	for (int i = 0; i < 5; i++) {
		struct ibv_mw_bind bind_of = {
			.wr_id = w.next_id++,
			.send_flags = IBV_SEND_SIGNALED,
			.bind_info = { w.remote, (uintptr_t)remote_of(0), i == 3 ? 0 : 512,
				       IBV_ACCESS_REMOTE_WRITE },
		};
		CHECK(ibv_bind_mw(w.receiver, window, &bind_of) == 0);
		completion(w.send_cq, "send");
		struct request write = { .kind = WRITE, .shape = EIGHT, .is_signalled = true,
					 .rkey = window->rkey };
		if (i != 3)
			run(&write, 1);
	}
	CHECK(ibv_dealloc_mw(window) == 0);
}

static void take_event(struct ibv_cq *wanted)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(w.channel, &cq, &context) == 0);
	CHECK(cq == wanted);
	ibv_ack_cq_events(cq, 1);
	printf("event of %s\n", cq == w.send_cq ? "send" : "recv");
}

static void events(void)
{
	struct request send = { .kind = SEND, .shape = EIGHT, .is_signalled = true };
	for (int i = 0; i < 20; i++) {
		CHECK(post_receives(1) == 0);
		fill(w.next_id);
		CHECK(ibv_req_notify_cq(w.send_cq, 0) == 0);
		send.is_solicited = i % 2;
		if (send.is_solicited)
			CHECK(ibv_req_notify_cq(w.recv_cq, 1) == 0);
		CHECK(post(&send, 1) == 0);
		/* Both events come in an order that the kernel chooses: one at a time is armed and
		 * taken, except for solicited ones, which are ordered by the queue's number. */
		if (send.is_solicited) {
			struct ibv_cq *cq;
			void *context;
			for (int k = 0; k < 2; k++) {
				CHECK(ibv_get_cq_event(w.channel, &cq, &context) == 0);
				ibv_ack_cq_events(cq, 1);
			}
			printf("both events\n");
		} else {
			take_event(w.send_cq);
		}
		completion(w.send_cq, "send");
		completion(w.recv_cq, "recv");
		no_completion(w.send_cq);
	}
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static void errors(void)
{
	struct request bad[3] = { filler(), filler(), filler() };
	/* A failed request, and two that are flushed. */
	bad[0].rkey = BAD_KEY;
	for (int round = 0; round < 3; round++) {
		bad[1].is_signalled = round != 1;
		/* The responder reports it to the receives that it flushes. */
		fill(w.next_id);
		CHECK(post(bad, 3) == 0);
		completion(w.send_cq, "send");
		/* Requests that fail or are flushed have a completion in any case. */
		completion(w.send_cq, "send");
		completion(w.send_cq, "send");
		CHECK(post(&bad[2], 1) == 0);
		completion(w.send_cq, "send");
		reset(w.sender);
		reset(w.receiver);
		connect_qps();
		struct request good = filler();
		for (int i = 0; i < 3; i++)
			run(&good, 1);
	}
	/* Receives of a queue pair in the error state. */
	if (!w.srq) {
		CHECK(post_receives(3) == 0);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		CHECK(ibv_modify_qp(w.receiver, &attr, IBV_QP_STATE) == 0);
		for (int i = 0; i < 3; i++)
			completion(w.recv_cq, "recv");
		reset(w.sender);
		reset(w.receiver);
		connect_qps();
	}
	struct request good = filler();
	run(&good, 1);
	/* Completions of a destroyed queue pair are removed from the queue. */
	for (int i = 0; i < 3; i++) {
		CHECK(post(&good, 1) == 0);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		/* Replies come in order: after this read, the write has its completion. */
		CHECK(ibv_query_qp(w.sender, &attr, IBV_QP_STATE, &init) == 0);
		double deadline = seconds() + DEADLINE_SECONDS;
		volatile uint8_t *last = remote_of(0) + 7;
		while (*last != local_of(0)[7])
			CHECK(seconds() < deadline);
		completion(w.send_cq, "send");
	}
	destroy_qps();
	no_completion(w.send_cq);
	create_qps();
	run(&good, 1);
}

/* Requests that the library must reject. Which errno it returns is not compared: libmlx5 returns
 * ENOMEM for inline data that is too long, this project EINVAL. */
static void refusals(void)
{
	struct request good = filler(), bad = filler();
	bad.shape = (struct shape){ 1, { 60000 } };
	bad.is_inline = true;
	/* If ibv_post_send rejects another request than the first, libmlx5 rings with the control segment
	 * of the rejected one. */
	for (int place = 0; place < (w.has_wr_api ? 3 : 1); place++) {
		struct request list[3] = { good, good, good };
		list[place] = bad;
		for (int i = 0; i < 3; i++)
			list[i].is_signalled = true;
		if (w.transport == UD)
			CHECK(post_receives(3) == 0);
		CHECK(post(list, 3) != 0);
		no_completion(w.send_cq);
		for (int i = 0; w.transport == UD && i < 3; i++) {
			CHECK(post(&good, 1) == 0);
			completion(w.send_cq, "send");
			completion(w.recv_cq, "recv");
		}
		run(&good, 1);
	}
	if (w.has_wr_api) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(w.sender);
		for (int count = 0; count < 5; count++) {
			ibv_wr_start(ex);
			for (int i = 0; i < count; i++)
				build(ex, &good, i);
			ibv_wr_abort(ex);
			no_completion(w.send_cq);
			run(&good, 1);
		}
		ibv_wr_start(ex);
		CHECK(ibv_wr_complete(ex) == 0);
	}
}

static uint64_t state;

static unsigned below(unsigned limit)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)((state >> 16) % limit);
}

static struct request any(void)
{
	struct request request = { .is_signalled = below(2) || w.signals_all };
	do
		request.kind = below(KINDS);
	while (!is_supported(request.kind));
	request.is_inline = may_be_inline(request.kind) && below(2);
	request.is_solicited = below(4) == 0;
	request.has_fence = w.transport != UD && w.transport != UC && below(4) == 0;
	if (is_atomic(request.kind)) {
		request.shape = EIGHT;
		return request;
	}
	uint32_t left = request.is_inline ? w.max_inline : 1000;
	/* Inline without any piece is in script `shapes`: libmlx5 does not count it as inline. */
	request.shape.count = request.is_inline ? 1 + (int)below(SGES) : (int)below(SGES + 1);
	for (int i = 0; i < request.shape.count; i++) {
		uint32_t length = below(3) ? below(left + 1) : below(left / 8 + 1);
		request.shape.lengths[i] = length;
		left -= length;
	}
	return request;
}

static void random_requests(uint64_t seed, unsigned long count)
{
	state = seed * 0x9e3779b97f4a7c15 + 1;
	while (count > 0) {
		struct request list[BATCH];
		unsigned long length = below(3) ? 1 : 1 + below(BATCH);
		if (length > count)
			length = count;
		for (unsigned long i = 0; i < length; i++)
			list[i] = any();
		list[length - 1].is_signalled = true;
		run(list, (int)length);
		count -= length;
	}
}

static int index_of(const char *name, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(name, names[i]))
			return i;
	fprintf(stderr, "differential: unknown word %s\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	static const char *const TRANSPORTS[] = { "rc", "uc", "ud", "xrc", "srq", NULL };
	static const char *const APIS[] = { "post", "wr", NULL };
	static const char *const SCRIPTS[] = { "shapes", "wraps",    "windows", "events",
					       "errors", "refusals", "random",	NULL };
	if (argc < 6) {
		fprintf(stderr, "usage: differential DEVICE GID_INDEX TRANSPORT API SCRIPT [SEED COUNT]\n");
		return 2;
	}
	w.gid_index = atoi(argv[2]);
	w.transport = (enum transport)index_of(argv[3], TRANSPORTS);
	w.has_wr_api = index_of(argv[4], APIS);
	w.signals_all = getenv("DIFFERENTIAL_SIGNALS_ALL") != NULL;
	w.has_data_in_completions = strcmp(getenv("MLX5_SCATTER_TO_CQE"), "0") != 0;
	int script = index_of(argv[5], SCRIPTS);
	open_device(argv[1]);
	create_world();
	switch (script) {
	case 0: shapes(); break;
	case 1: wraps(); break;
	case 2: windows(); break;
	case 3: events(); break;
	case 4: errors(); break;
	case 5: refusals(); break;
	default:
		random_requests(argc > 6 ? strtoull(argv[6], NULL, 0) : 1,
				argc > 7 ? strtoul(argv[7], NULL, 0) : 100);
	}
	destroy_world();
	printf("done\n");
	return 0;
}

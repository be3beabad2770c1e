/* Runs a script of work requests on one device and prints all observations, to compare two libraries
 * by their output and by the trace of the ConnectX model.
 *
 * differential DEVICE GID_INDEX TRANSPORT API SCRIPT [SEED COUNT]
 *
 *   TRANSPORT  rc, uc, ud, xrc, srq (RC with a shared receive queue), tm (the same with a tag list),
 *              raw (frames), wq (frames received by a work queue)
 *   API        post (ibv_post_send, ibv_poll_cq) or wr (ibv_wr_..., ibv_start_poll)
 *   SCRIPT     shapes   each operation in each shape, signalled or not, alone or in a list
 *              wraps    long operations from each place of the send queue
 *              windows  binds and invalidations
 *              events   armed completion queues
 *              errors   failed requests, flushes, and a queue pair after its reset
 *              refusals requests rejected by the library
 *              segments long sends of frames, segmented by the device
 *              tags     operations on the tag list, and messages with tags
 *              random   COUNT operations from SEED
 *
 * A trace is the same in each run: data is at fixed addresses, sequence numbers are constants, and a
 * list of requests is completed before the next is posted. A GID_INDEX of -1 means paths without a
 * GRH. The device does not deliver frames to the context that sent them, so the sender of frames has
 * a separate context. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/tm_types.h>
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
	TAGS = 7,
	OPS = 8,
	MTU = 1024,
	MAX_HEADER = 96,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
};

static uint8_t *const MEMORY = (uint8_t *)0x200000000000;
static const uint32_t BAD_KEY = 0xdead0000;

enum transport { RC, UC, UD, XRC, SRQ, RAW, WQ, TM };
enum kind { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, SWAP, ADD, KINDS, TSO = KINDS };

static const char *const KIND_NAMES[] = { "send", "send_imm", "send_inv", "write", "write_imm",
					  "read", "swap",     "add",      "tso" };

/* A list of lengths; the pieces lie one after the other, with gaps. */
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

/* Shapes of frames, whose first 18 bytes may be in a separate segment. */
static const struct shape FRAME_LISTS[] = {
	{ 1, { 60 } },	       { 1, { 18 } },	    { 1, { 1000 } },	   { 2, { 18, 100 } },
	{ 2, { 14, 60 } },     { 3, { 1, 13, 50 } }, { 3, { 42, 0, 100 } }, { 3, { 6, 12, 40 } },
	{ 3, { 17, 1, 300 } }, { 2, { 19, 3 } },	    { 3, { 0, 64, 128 } },
};

static const struct shape FRAME_INLINES[] = {
	{ 1, { 60 } },	   { 1, { 18 } },	  { 1, { 19 } },	   { 2, { 10, 50 } },
	{ 3, { 17, 0, 40 } }, { 3, { 18, 20, 20 } }, { 2, { 30, 34 } },
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

struct request {
	enum kind kind;
	struct shape shape;
	bool is_inline, is_signalled, is_solicited, has_fence, has_checksums;
	uint32_t rkey, invalidates; /* 0: the usual one */
	uint16_t header, mss;	    /* of a send that the device cuts */
};

static struct {
	enum transport transport;
	bool has_wr_api, signals_all, has_data_in_completions, has_segments;
	int gid_index;
	/* Of the receiver and of the sender; the same, except for frames. */
	struct ibv_context *context, *send_context;
	struct ibv_port_attr port;
	struct ibv_pd *pd, *send_pd;
	struct ibv_comp_channel *channel, *send_channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *local, *remote;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *sender, *receiver;
	struct ibv_ah *ah;
	struct ibv_wq *wq;
	struct ibv_rwq_ind_table *table;
	struct ibv_flow *flow;
	uint8_t mac[6];
	uint8_t headers[BATCH][MAX_HEADER];
	uint32_t max_inline;
	uint16_t unexpected; /* messages without their tag */
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

static bool has_frames(void)
{
	return w.transport == RAW || w.transport == WQ;
}

/* Whether every message of the transport takes a receive. */
static bool has_datagrams(void)
{
	return w.transport == UD || has_frames();
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list != NULL);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name)) {
			w.context = ibv_open_device(list[i]);
			w.send_context = has_frames() ? ibv_open_device(list[i]) : w.context;
		}
	CHECK(w.context != NULL && w.send_context != NULL);
	ibv_free_device_list(list);
	CHECK(ibv_query_port(w.context, PORT, &w.port) == 0);
	if (has_frames()) {
		/* The first GID of a port is derived from its Ethernet address. */
		union ibv_gid gid;
		CHECK(w.port.link_layer == IBV_LINK_LAYER_ETHERNET);
		CHECK(ibv_query_gid(w.context, PORT, 0, &gid) == 0);
		w.mac[0] = gid.raw[8] ^ 2;
		memcpy(w.mac + 1, gid.raw + 9, 2);
		memcpy(w.mac + 3, gid.raw + 13, 3);
	}
}

/* Completions of a tag list can be read only in this way. */
static bool is_extended(bool is_of_receiver)
{
	return w.has_wr_api || (w.transport == TM && is_of_receiver);
}

static struct ibv_cq *create_cq(struct ibv_context *context, struct ibv_comp_channel *channel,
				bool is_of_receiver)
{
	struct ibv_cq *cq;
	if (is_extended(is_of_receiver)) {
		struct ibv_cq_init_attr_ex attr = {
			.cqe = 60,
			.channel = channel,
			.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
				    IBV_WC_EX_WITH_SRC_QP,
		};
		if (w.transport == TM && is_of_receiver)
			attr.wc_flags |= IBV_WC_EX_WITH_TM_INFO;
		struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);
		CHECK(ex != NULL);
		cq = ibv_cq_ex_to_cq(ex);
	} else {
		cq = ibv_create_cq(context, 60, NULL, channel, 0);
	}
	CHECK(cq != NULL);
	printf("cq of %d\n", cq->cqe);
	return cq;
}

/* All operations of a transport: libmlx5 sizes the send queue by the longest one requested. */
static uint64_t operations(enum ibv_qp_type type)
{
	uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	if (type == IBV_QPT_RAW_PACKET)
		return IBV_QP_EX_WITH_SEND | (w.has_segments ? IBV_QP_EX_WITH_TSO : 0);
	if (type == IBV_QPT_UD)
		return ops;
	ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
	       IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
	if (type == IBV_QPT_UC)
		return ops;
	return ops | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
	       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, enum ibv_qp_type type, struct ibv_srq *srq)
{
	bool sends = type != IBV_QPT_XRC_RECV, receives = type != IBV_QPT_XRC_RECV && type != IBV_QPT_XRC_SEND;
	struct ibv_qp_init_attr_ex attr = { .qp_type = type, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	attr.sq_sig_all = w.signals_all;
	/* The receiver with a tag list sends only on behalf of the device. */
	if (w.transport == TM && srq) {
		attr.send_cq = w.recv_cq;
		sends = false;
	}
	/* The sender of frames to a work queue receives none. */
	if (w.transport == WQ) {
		attr.recv_cq = w.send_cq;
		receives = false;
	}
	if (sends) {
		attr.send_cq = has_frames() && pd == w.pd ? w.recv_cq : w.send_cq;
		if (w.has_segments) {
			attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
			attr.max_tso_header = MAX_HEADER;
		}
		attr.cap.max_send_wr = SENDS;
		attr.cap.max_send_sge = SGES;
		attr.cap.max_inline_data = 64;
		if (w.has_wr_api) {
			attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
			attr.send_ops_flags = operations(type);
		}
	}
	if (receives) {
		attr.recv_cq = has_frames() && pd == w.send_pd ? w.send_cq : w.recv_cq;
		if (w.transport == TM && !srq)
			attr.recv_cq = w.send_cq;
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
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &attr);
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
		/* Determines the UDP port, which is otherwise random or depends on the queue pairs' numbers. */
		path.grh.flow_label = 0x12345;
		CHECK(ibv_query_gid(w.context, PORT, w.gid_index, &path.grh.dgid) == 0);
	}
	return path;
}

static void move_wq(enum ibv_wq_state state)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };
	CHECK(ibv_modify_wq(w.wq, &attr) == 0);
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
	int mask = IBV_QP_STATE | IBV_QP_PORT;
	if (qp->qp_type != IBV_QPT_RAW_PACKET)
		mask |= IBV_QP_PKEY_INDEX | (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
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
	if (type != IBV_QPT_UD && type != IBV_QPT_RAW_PACKET)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	if (type == IBV_QPT_XRC_RECV)
		return;
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 100;
	/* No timeout, because retries would depend on time. */
	attr.timeout = 0;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | (type == IBV_QPT_RAW_PACKET ? 0 : IBV_QP_SQ_PSN);
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void connect_qps(void)
{
	to_init(w.sender);
	if (w.transport == WQ) {
		move_wq(IBV_WQS_RDY);
	} else {
		to_init(w.receiver);
		to_rts(w.receiver, w.sender->qp_num);
	}
	to_rts(w.sender, w.receiver->qp_num);
	w.posted_receives = 0;
}

/* A work queue as a table's only entry, and the queue pair that receives through the table. */
static void create_wq(void)
{
	static uint8_t key[40];
	struct ibv_wq_init_attr wq = {
		.wq_type = IBV_WQT_RQ, .max_wr = RECEIVES, .max_sge = SGES, .pd = w.pd, .cq = w.recv_cq
	};
	w.wq = ibv_create_wq(w.context, &wq);
	CHECK(w.wq != NULL);
	printf("wq of %u of %u\n", wq.max_wr, wq.max_sge);
	struct ibv_wq *both[] = { w.wq, w.wq };
	struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 1, .ind_tbl = both };
	w.table = ibv_create_rwq_ind_table(w.context, &table);
	CHECK(w.table != NULL);
	for (size_t i = 0; i < sizeof key; i++)
		key[i] = (uint8_t)(i * 37 + 11);
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = w.pd,
		.rwq_ind_tbl = w.table,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
				  .rx_hash_key_len = sizeof key,
				  .rx_hash_key = key,
				  .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 },
	};
	w.receiver = ibv_create_qp_ex(w.context, &attr);
	CHECK(w.receiver != NULL);
}

/* A rule for frames to the port's address. */
static void create_flow(void)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = PORT },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth },
	};
	memcpy(rule.eth.val.dst_mac, w.mac, sizeof w.mac);
	memset(rule.eth.mask.dst_mac, 0xff, sizeof w.mac);
	w.flow = ibv_create_flow(w.receiver, &rule.attr);
	CHECK(w.flow != NULL);
}

static void create_qps(void)
{
	static const enum ibv_qp_type TYPES[] = {
		[RC] = IBV_QPT_RC,	     [UC] = IBV_QPT_UC,	  [UD] = IBV_QPT_UD,
		[XRC] = IBV_QPT_XRC_SEND,    [SRQ] = IBV_QPT_RC,  [TM] = IBV_QPT_RC,
		[RAW] = IBV_QPT_RAW_PACKET, [WQ] = IBV_QPT_RAW_PACKET,
	};
	enum ibv_qp_type type = TYPES[w.transport];
	w.sender = create_qp(w.send_pd, type, NULL);
	if (w.transport == WQ)
		create_wq();
	else
		w.receiver = create_qp(w.pd, w.transport == XRC ? IBV_QPT_XRC_RECV : type, w.srq);
	connect_qps();
	if (has_frames())
		create_flow();
}

static void destroy_qps(void)
{
	if (w.flow)
		CHECK(ibv_destroy_flow(w.flow) == 0);
	CHECK(ibv_destroy_qp(w.sender) == 0);
	CHECK(ibv_destroy_qp(w.receiver) == 0);
	if (w.wq) {
		CHECK(ibv_destroy_rwq_ind_table(w.table) == 0);
		CHECK(ibv_destroy_wq(w.wq) == 0);
	}
}

/* Creates the shared receive queue with the type, and the fields specific to this type, of ATTR. */
static void create_srq_ex(struct ibv_srq_init_attr_ex *attr)
{
	attr->attr = (struct ibv_srq_attr){ .max_wr = RECEIVES - 1, .max_sge = SGES };
	attr->comp_mask |= IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ;
	attr->pd = w.pd;
	attr->cq = w.recv_cq;
	w.srq = ibv_create_srq_ex(w.context, attr);
	CHECK(w.srq != NULL);
	printf("srq of %u of %u\n", attr->attr.max_wr, attr->attr.max_sge);
}

static void create_world(void)
{
	void *at = mmap(MEMORY, 2 * HALF, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(at == MEMORY);
	w.pd = ibv_alloc_pd(w.context);
	w.send_pd = has_frames() ? ibv_alloc_pd(w.send_context) : w.pd;
	CHECK(w.pd != NULL && w.send_pd != NULL);
	w.local = ibv_reg_mr(w.send_pd, MEMORY, HALF, ACCESS);
	w.remote = ibv_reg_mr(w.pd, MEMORY + HALF, HALF, ACCESS);
	CHECK(w.local != NULL && w.remote != NULL);
	w.channel = ibv_create_comp_channel(w.context);
	w.send_channel = has_frames() ? ibv_create_comp_channel(w.send_context) : w.channel;
	CHECK(w.channel != NULL && w.send_channel != NULL);
	w.send_cq = create_cq(w.send_context, w.send_channel, false);
	w.recv_cq = create_cq(w.context, w.channel, true);
	if (w.transport == XRC) {
		struct ibv_xrcd_init_attr domain = {
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
			.fd = -1,
			.oflags = O_CREAT,
		};
		w.xrcd = ibv_open_xrcd(w.context, &domain);
		CHECK(w.xrcd != NULL);
		create_srq_ex(&(struct ibv_srq_init_attr_ex){
			.srq_type = IBV_SRQT_XRC,
			.comp_mask = IBV_SRQ_INIT_ATTR_XRCD,
			.xrcd = w.xrcd,
		});
	} else if (w.transport == TM) {
		create_srq_ex(&(struct ibv_srq_init_attr_ex){
			.srq_type = IBV_SRQT_TM,
			.comp_mask = IBV_SRQ_INIT_ATTR_TM,
			.tm_cap = { .max_num_tags = TAGS, .max_ops = OPS },
		});
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
	if (has_frames()) {
		CHECK(ibv_destroy_comp_channel(w.send_channel) == 0);
		CHECK(ibv_dealloc_pd(w.send_pd) == 0);
		CHECK(ibv_close_device(w.send_context) == 0);
	}
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
	bool is_tag_operation = opcode == IBV_WC_TM_ADD || opcode == IBV_WC_TM_DEL || opcode == IBV_WC_TM_SYNC;
	if ((opcode & IBV_WC_RECV && !is_tag_operation) || opcode == IBV_WC_RDMA_READ)
		printf(" bytes=%u", bytes);
	/* libmlx5 reads it from a field that the data has overwritten. */
	if (w.has_data_in_completions)
		flags &= ~IBV_WC_GRH;
	/* libmlx5 reports it only to queue pairs. */
	if (w.transport == WQ)
		flags &= ~IBV_WC_IP_CSUM_OK;
	/* Meaningless in completions of sends. */
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
	if (is_extended(cq == w.recv_cq)) {
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
			if (opcode == IBV_WC_TM_RECV) {
				struct ibv_wc_tm_info tm;
				ibv_wc_read_tm_info(ex, &tm);
				printf(" tag=%#llx private=%u", (unsigned long long)tm.tag, tm.priv);
			}
			/* Errors of tag lists have a time in place of the syndrome. */
		} else if (ex->status != IBV_WC_TM_ERR && ex->status != IBV_WC_TM_RNDV_INCOMPLETE) {
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
	if (is_extended(cq == w.recv_cq)) {
		struct ibv_poll_cq_attr attr = { 0 };
		CHECK(ibv_start_poll((struct ibv_cq_ex *)cq, &attr) == ENOENT);
	} else {
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	}
}

/* Requests. */

/* Addresses of request number `place` of a list, whose pieces have gaps of 16 bytes. */
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
	return kind <= SEND_INV || kind == WRITE_IMM || kind == TSO;
}

static uint32_t length_of(const struct request *request)
{
	uint32_t length = 0;
	for (int i = 0; i < request->shape.count; i++)
		length += request->shape.lengths[i];
	return length;
}

/* Number of receives taken by a request. */
static int receives_of(const struct request *request)
{
	if (request->kind == TSO)
		return (int)((length_of(request) + request->mss - 1) / request->mss);
	return takes_receive(request->kind);
}

static unsigned flags_of(const struct request *request)
{
	return (request->is_signalled ? IBV_SEND_SIGNALED : 0) | (request->is_inline ? IBV_SEND_INLINE : 0) |
	       (request->is_solicited ? IBV_SEND_SOLICITED : 0) | (request->has_fence ? IBV_SEND_FENCE : 0) |
	       (request->has_checksums ? IBV_SEND_IP_CSUM : 0);
}

static uint32_t rkey_of(const struct request *request)
{
	return request->rkey ? request->rkey : w.remote->rkey;
}

static __be32 imm_of(uint64_t id)
{
	return (__be32)(0xabcd0000 + id);
}

/* Posts a list of receives with varying scatter lists. */
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
	if (w.wq)
		return ibv_post_wq_recv(w.wq, requests, &bad);
	return w.srq ? ibv_post_srq_recv(w.srq, requests, &bad) : ibv_post_recv(w.receiver, requests, &bad);
}

static int post_classic(const struct request *requests, int count)
{
	static const enum ibv_wr_opcode OPCODES[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_TSO
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
		if (request->kind == TSO) {
			wr->tso.hdr = w.headers[i];
			wr->tso.hdr_sz = request->header;
			wr->tso.mss = request->mss;
		} else if (w.transport == UD) {
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
	case TSO: ibv_wr_send_tso(ex, w.headers[place], request->header, request->mss); break;
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

static void put16(uint8_t *at, uint32_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

/* Writes the headers of a frame of `length` bytes: UDP over IPv4 if they fit, else an unknown protocol.
 * TCP headers have options and no payload, because the device puts them before each segment. */
static void frame_headers(uint8_t *to, uint32_t length, bool is_tcp, uint32_t options)
{
	static const uint8_t SOURCE[6] = { 2, 0, 0, 0, 0, 1 };
	static const uint8_t ADDRESSES[8] = { 10, 1, 1, 1, 10, 1, 1, 2 };
	bool is_ip = length >= 42;
	memset(to, 0, MAX_HEADER);
	memcpy(to, w.mac, 6);
	memcpy(to + 6, SOURCE, 6);
	put16(to + 12, is_ip ? 0x0800 : 0x88b5);
	if (!is_ip)
		return;
	to[14] = 0x45;
	put16(to + 16, length - 14);
	to[22] = 64;
	to[23] = is_tcp ? 6 : 17;
	memcpy(to + 26, ADDRESSES, 8);
	put16(to + 34, 1000);
	put16(to + 36, 2000);
	if (!is_tcp) {
		put16(to + 38, length - 34);
		return;
	}
	put16(to + 40, 0xff80);
	to[46] = (uint8_t)((5 + options / 4) << 4);
	to[47] = 0x18;
	put16(to + 48, 0x1000);
	memset(to + 54, 1, options);
}

/* Turns the data of a request into a frame, with headers in the first pieces. */
static void make_frame(const struct request *request, int place)
{
	uint8_t headers[MAX_HEADER], *at = local_of(place);
	uint32_t length = length_of(request), left = length < 42 ? length < 14 ? length : 14 : 42, done = 0;
	if (request->kind == TSO) {
		frame_headers(w.headers[place], request->header, true, request->header - 54u);
		return;
	}
	frame_headers(headers, length, false, 0);
	for (int i = 0; left > 0; i++) {
		uint32_t part = request->shape.lengths[i] < left ? request->shape.lengths[i] : left;
		memcpy(at, headers + done, part);
		done += part;
		left -= part;
		at += request->shape.lengths[i] + 16;
	}
}

/* Fills the memory of a list. */
static void prepare(const struct request *requests, int count)
{
	fill(w.next_id);
	for (int i = 0; has_frames() && i < count; i++)
		make_frame(&requests[i], i);
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

/* Posts a list, whose last request must be signalled, and waits for all completions. */
static void run(const struct request *requests, int count)
{
	int receives = 0, completions = 0;
	for (int i = 0; i < count; i++) {
		receives += receives_of(&requests[i]);
		completions += requests[i].is_signalled;
	}
	CHECK(requests[count - 1].is_signalled);
	if (receives)
		CHECK(post_receives(receives) == 0);
	prepare(requests, count);
	CHECK(post(requests, count) == 0);
	for (int i = 0; i < completions; i++)
		completion(w.send_cq, "send");
	for (int i = 0; i < receives; i++)
		completion(w.recv_cq, "recv");
	print_memory();
}

static const struct shape EIGHT = { 1, { 8 } };

/* Returns a short request supported by every transport. */
static struct request filler(void)
{
	if (has_frames())
		return (struct request){ .kind = SEND, .shape = FRAME_LISTS[0], .is_signalled = true };
	return (struct request){ .kind = w.transport == UD ? SEND : WRITE, .shape = EIGHT, .is_signalled = true };
}

static bool is_supported(enum kind kind)
{
	switch (w.transport) {
	case UD: return kind <= SEND_IMM;
	case RAW:
	case WQ: return kind == SEND;
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

/* Posts a request alone, in a list, and unsignalled. */
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
	/* With its own doorbell, and retired by the completion of the next one. */
	list[0].is_signalled = false;
	int receives = receives_of(&request);
	if (receives)
		CHECK(post_receives(receives) == 0);
	prepare(list, 1);
	CHECK(post(list, 1) == 0);
	run(&list[2], 1);
	for (int i = 0; i < receives; i++)
		completion(w.recv_cq, "recv");
}

static void shapes_of_frames(void)
{
	for (int checksums = 0; checksums < 2; checksums++) {
		struct request request = { .kind = SEND, .has_checksums = checksums };
		for (size_t i = 0; i < LENGTH(FRAME_LISTS); i++) {
			request.shape = FRAME_LISTS[i];
			each_way(request);
		}
		request.is_inline = true;
		for (size_t i = 0; i < LENGTH(FRAME_INLINES); i++) {
			request.shape = FRAME_INLINES[i];
			each_way(request);
		}
		request.shape = (struct shape){ 1, { w.max_inline } };
		each_way(request);
	}
}

/* All requests have two blocks, so that no header wraps around the queue's end: after such a header,
 * libmlx5 puts the data 32 bytes too far. */
static void segments(void)
{
	static const struct shape ONE_PIECE[] = {
		{ 1, { 1 } }, { 1, { 100 } }, { 1, { 101 } }, { 3, { 0, 400, 0 } }
	};
	static const struct shape TWO_PIECES[] = { { 2, { 250, 247 } }, { 3, { 7, 0, 90 } }, { 3, { 1, 299, 0 } } };
	struct request between = { .kind = SEND, .shape = { 1, { 60 } }, .is_inline = true, .is_signalled = true };
	unsigned count = 0;
	for (uint16_t header = 54; header <= 82; header += 4)
		for (size_t i = 0; i < LENGTH(ONE_PIECE) + (header <= 66 ? LENGTH(TWO_PIECES) : 0); i++) {
			struct request request = {
				.kind = TSO,
				.shape = i < LENGTH(ONE_PIECE) ? ONE_PIECE[i] : TWO_PIECES[i - LENGTH(ONE_PIECE)],
				.header = header,
				.mss = ++count % 2 ? 100 : 333,
				.has_checksums = count % 3,
				.is_solicited = count % 5 == 0,
				.is_signalled = true,
			};
			printf("# header of %u, segments of %u\n", header, request.mss);
			run(&request, 1);
			struct request list[3] = { request, between, request };
			list[0].is_signalled = false;
			list[0].shape = list[2].shape = ONE_PIECE[count % 3];
			run(list, 3);
		}
}

static void shapes(void)
{
	if (has_frames()) {
		shapes_of_frames();
		return;
	}
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

/* Long requests, with an odd and an even number of blocks in between, so that one of them starts at
 * each block of the queue. */
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

/* The receiver binds windows used by the sender. */
static void windows(void)
{
	struct ibv_mw *window = ibv_alloc_mw(w.pd, IBV_MW_TYPE_2);
	CHECK(window != NULL);
	uint32_t rkey = window->rkey;
	/* More binds than the queue has blocks, so that one starts at each. */
	for (int i = 0; i < 70; i++) {
		rkey = ibv_inc_rkey(rkey);
		bind(window, rkey, 512, i % 2);
		struct request write = { .kind = WRITE, .shape = EIGHT, .is_signalled = true, .rkey = rkey };
		run(&write, 1);
		if (w.transport == UC) {
			/* Queue pairs of this type cannot invalidate keys here, so each window is bound once. */
			CHECK(ibv_dealloc_mw(window) == 0);
			window = ibv_alloc_mw(w.pd, IBV_MW_TYPE_2);
			CHECK(window != NULL);
			rkey = window->rkey;
		} else if (i % 3) {
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
	CHECK(ibv_get_cq_event(wanted == w.send_cq ? w.send_channel : w.channel, &cq, &context) == 0);
	CHECK(cq == wanted);
	ibv_ack_cq_events(cq, 1);
	printf("event of %s\n", cq == w.send_cq ? "send" : "recv");
}

static void events(void)
{
	struct request send = { .kind = SEND, .shape = EIGHT, .is_signalled = true };
	if (has_frames())
		send = filler();
	for (int i = 0; i < 20; i++) {
		CHECK(post_receives(1) == 0);
		prepare(&send, 1);
		CHECK(ibv_req_notify_cq(w.send_cq, 0) == 0);
		/* A frame cannot be solicited. */
		send.is_solicited = i % 2 && !has_frames();
		if (i % 2)
			CHECK(ibv_req_notify_cq(w.recv_cq, !has_frames()) == 0);
		CHECK(post(&send, 1) == 0);
		/* The kernel chooses the order of two events, so one at a time is armed and taken,
		 * except for solicited ones, which are taken together. */
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
			if (i % 2)
				take_event(w.recv_cq);
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

static void reset_all(void)
{
	reset(w.sender);
	if (w.wq)
		move_wq(IBV_WQS_RESET);
	else
		reset(w.receiver);
	connect_qps();
}

static void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

/* Flushes, and frames too long for their receive. Frames too long for the port are left out, because
 * the device then moves the send queue to the error state without the kernel's knowledge, and the
 * queue cannot be reset any more. */
static void errors_of_frames(void)
{
	struct request list[3] = { filler(), filler(), filler() };
	for (int round = 0; round < 3; round++) {
		list[1].is_signalled = round != 1;
		to_error(w.sender);
		prepare(list, 3);
		CHECK(post(list, 3) == 0);
		for (int i = 0; i < 3; i++)
			completion(w.send_cq, "send");
		CHECK(post(&list[2], 1) == 0);
		completion(w.send_cq, "send");
		reset_all();
		struct request good = filler();
		for (int i = 0; i < 3; i++)
			run(&good, 1);
	}
	for (int i = 0; i < 20; i++) {
		struct ibv_sge sge = { (uintptr_t)(MEMORY + HALF), 59, w.remote->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = w.next_receive++, .sg_list = &sge, .num_sge = 1 };
		CHECK((w.wq ? ibv_post_wq_recv(w.wq, &wr, &bad) : ibv_post_recv(w.receiver, &wr, &bad)) == 0);
		struct request good = filler();
		prepare(&good, 1);
		CHECK(post(&good, 1) == 0);
		completion(w.send_cq, "send");
		completion(w.recv_cq, "recv");
		run(&good, 1);
	}
	for (int i = 0; i < 2; i++) {
		CHECK(post_receives(3) == 0);
		if (w.wq)
			move_wq(IBV_WQS_ERR);
		else
			to_error(w.receiver);
		for (int k = 0; k < 3; k++)
			completion(w.recv_cq, "recv");
		reset_all();
		struct request good = filler();
		run(&good, 1);
	}
	destroy_qps();
	no_completion(w.send_cq);
	no_completion(w.recv_cq);
	create_qps();
	struct request good = filler();
	run(&good, 1);
}

static void errors(void)
{
	if (has_frames()) {
		errors_of_frames();
		return;
	}
	struct request bad[3] = { filler(), filler(), filler() };
	/* A failed request and two flushed ones. */
	bad[0].rkey = BAD_KEY;
	for (int round = 0; round < 3; round++) {
		bad[1].is_signalled = round != 1;
		/* The responder reports the error by flushing its receives. */
		fill(w.next_id);
		CHECK(post(bad, 3) == 0);
		completion(w.send_cq, "send");
		/* Failed and flushed requests complete even if unsignalled. */
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
		/* Replies arrive in order: after this read, the write has its completion. */
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

/* Requests that the library must reject. The errno is not compared: for inline data that is too long,
 * libmlx5 returns ENOMEM and this project EINVAL. */
static void refusals(void)
{
	struct request good = filler(), bad = filler();
	bad.shape = (struct shape){ 1, { 60000 } };
	bad.is_inline = true;
	/* If ibv_post_send rejects a request after the first, libmlx5 rings the doorbell with the control
	 * segment of the rejected one. */
	for (int place = 0; place < (w.has_wr_api ? 3 : 1); place++) {
		struct request list[3] = { good, good, good };
		list[place] = bad;
		for (int i = 0; i < 3; i++)
			list[i].is_signalled = true;
		if (has_datagrams())
			CHECK(post_receives(3) == 0);
		CHECK(post(list, 3) == ENOMEM);
		no_completion(w.send_cq);
		for (int i = 0; has_datagrams() && i < 3; i++) {
			prepare(&good, 1);
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

/* Returns a random frame of at least 18 bytes. */
static struct request any_frame(void)
{
	struct request request = { .kind = SEND, .is_signalled = below(2), .is_inline = below(2) };
	request.has_checksums = below(2);
	uint32_t left = request.is_inline ? w.max_inline : 1000;
	request.shape.count = 1 + (int)below(SGES);
	for (int i = 0; i < request.shape.count; i++) {
		uint32_t length = below(3) ? below(left + 1) : below(left / 8 + 1);
		request.shape.lengths[i] = length;
		left -= length;
	}
	if (length_of(&request) < 18)
		request.shape.lengths[request.shape.count - 1] += 18;
	return request;
}

static struct request any(void)
{
	if (has_frames())
		return any_frame();
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
	/* Inline data without any piece is left to `shapes`: libmlx5 does not treat it as inline. */
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

/* Tag lists. */

static struct tag {
	uint64_t tag;
	uint32_t handle, length;
} live[TAGS];
static unsigned live_count;
static uint16_t counted; /* what the last addition with a count reported */

/* Memory that is not printed, because keys differ from run to run: of a request to read, of its
 * reply, and of a tag matched by the request. */
static uint8_t *const REQUEST = (uint8_t *)0x200000028000;
static uint8_t *const ANSWER = (uint8_t *)0x200000029000;

static uint8_t *unprinted_tag(void)
{
	return remote_of(20);
}

/* Posts operations and polls the completions of signalled ones. */
static void post_ops(struct ibv_ops_wr *wrs, int count)
{
	struct ibv_ops_wr *bad;
	for (int i = 0; i < count; i++) {
		wrs[i].wr_id = w.next_id++;
		wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
		wrs[i].tm.unexpected_cnt = w.unexpected;
	}
	CHECK(ibv_post_srq_ops(w.srq, wrs, &bad) == 0);
	for (int i = 0; i < count; i++)
		if (wrs[i].flags & IBV_OPS_SIGNALED)
			completion(w.recv_cq, "tags");
}

static struct ibv_ops_wr sync_op(void)
{
	return (struct ibv_ops_wr){ .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC };
}

static struct ibv_ops_wr del_op(uint32_t handle, int flags)
{
	return (struct ibv_ops_wr){ .opcode = IBV_WR_TAG_DEL, .flags = flags, .tm = { .handle = handle } };
}

static struct ibv_ops_wr add_op(struct ibv_sge *sge, uint64_t tag, uint64_t mask, uint32_t length, int flags)
{
	*sge = (struct ibv_sge){ (uintptr_t)remote_of((int)(tag % BATCH)), length, w.remote->lkey };
	return (struct ibv_ops_wr){
		.opcode = IBV_WR_TAG_ADD,
		.flags = flags,
		.tm.add = { .recv_wr_id = w.next_receive++, .sg_list = sge, .num_sge = 1, .tag = tag, .mask = mask },
	};
}

/* Adds one tag. An unsignalled operation is retired by the next one. */
static uint32_t add_tag(uint64_t tag, uint64_t mask, uint32_t length, int flags)
{
	struct ibv_sge sge;
	struct ibv_ops_wr wrs[2] = { add_op(&sge, tag, mask, length, flags), sync_op() };
	post_ops(wrs, flags & IBV_OPS_SIGNALED ? 1 : 2);
	return wrs[0].tm.handle;
}

/* Sends a message, and polls the given number of completions of its receiver. */
static void send_message(int operation, uint64_t tag, uint32_t length, int completions)
{
	struct request request = { .kind = SEND, .shape = { 1, { 16 + length } }, .is_signalled = true };
	struct ibv_tmh header = { .opcode = (uint8_t)operation, .app_ctx = htobe32(77), .tag = htobe64(tag) };
	fill(w.next_id);
	memcpy(local_of(0), &header, sizeof header);
	CHECK(post(&request, 1) == 0);
	completion(w.send_cq, "send");
	for (int i = 0; i < completions; i++)
		completion(w.recv_cq, "tags");
	print_memory();
}

/* The first packet of a longer message has a completion, too. */
static int completions_of(uint32_t length)
{
	return 16 + length > MTU ? 2 : 1;
}

static void send_matching(uint64_t tag, uint32_t length)
{
	send_message(IBV_TMH_EAGER, tag, length, completions_of(length));
}

static void send_unexpected(int operation, uint64_t tag, uint32_t length)
{
	CHECK(post_receives(1) == 0);
	send_message(operation, tag, length, 1);
	w.unexpected += operation == IBV_TMH_EAGER;
}

/* Makes the device read the data of a request, for a tag with or without room for it. */
static void rendezvous(uint64_t tag, uint32_t length, bool has_room)
{
	struct ibv_tmh header = { .opcode = IBV_TMH_RNDV, .app_ctx = htobe32(77), .tag = htobe64(tag) };
	struct ibv_rvh remote = {
		.va = htobe64((uintptr_t)local_of(1)), .rkey = htobe32(w.local->rkey), .len = htobe32(length)
	};
	struct ibv_sge sge = { (uintptr_t)REQUEST, sizeof header + sizeof remote, w.local->lkey };
	struct ibv_sge answer = { (uintptr_t)ANSWER, 64, w.local->lkey };
	struct ibv_recv_wr *bad_receive,
		receive = { .wr_id = w.next_receive++, .sg_list = &answer, .num_sge = 1 };
	struct ibv_send_wr *bad, wr = { .wr_id = w.next_id++, .sg_list = &sge, .num_sge = 1,
					.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	fill(w.next_id);
	memcpy(REQUEST, &header, sizeof header);
	memcpy(REQUEST + sizeof header, &remote, sizeof remote);
	if (has_room)
		CHECK(ibv_post_recv(w.sender, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(w.sender, &wr, &bad) == 0);
	completion(w.send_cq, "send");
	completion(w.recv_cq, "tags");
	if (has_room) {
		completion(w.recv_cq, "tags");
		completion(w.send_cq, "recv");
	}
	print_memory();
}

static void tags(void)
{
	static const uint32_t MESSAGES[] = { 0, 1, 8, 200, 1008, 1009, 2100 };
	static const int FLAGS[] = { IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, IBV_OPS_SIGNALED, IBV_OPS_TM_SYNC, 0 };
	const int BOTH = FLAGS[0];
	uint64_t tag = 1;
	for (size_t form = 0; form < LENGTH(FLAGS); form++)
		for (size_t i = 0; i < LENGTH(MESSAGES); i++) {
			printf("# flags %#x, message of %u\n", FLAGS[form], MESSAGES[i]);
			add_tag(tag, UINT64_MAX, i % 2 ? 2304 : MESSAGES[i], FLAGS[form]);
			send_matching(tag++, MESSAGES[i]);
		}
	printf("# the oldest tag\n");
	add_tag(0x21, 0xff, 64, BOTH);
	add_tag(0x20, 0xf0, 64, BOTH);
	add_tag(0x22, 0xff, 64, BOTH);
	send_matching(0x22, 8);
	send_matching(0x122, 8);
	send_matching(0xff21, 8);
	printf("# lists\n");
	for (int i = 0; i < 12; i++) {
		struct ibv_sge sges[3];
		struct ibv_ops_wr wrs[4];
		for (int k = 0; k < 3; k++)
			wrs[k] = add_op(&sges[k], tag + (unsigned)k, UINT64_MAX, 64, i & 1 << k ? BOTH : 0);
		wrs[3] = sync_op();
		post_ops(wrs, 4);
		int flags = i % 2 ? IBV_OPS_SIGNALED : 0;
		struct ibv_ops_wr dels[2] = { del_op(wrs[i % 3].tm.handle, flags), sync_op() };
		post_ops(dels, 2);
		for (int k = 2; k >= 0; k--)
			if (k != i % 3)
				send_matching(tag + (unsigned)k, 8);
		tag += 3;
	}
	printf("# without a tag\n");
	send_unexpected(IBV_TMH_NO_TAG, tag, 100);
	send_unexpected(IBV_TMH_FIN, tag, 100);
	for (size_t i = 0; i < LENGTH(MESSAGES) - 1; i++)
		send_unexpected(IBV_TMH_EAGER, tag, MESSAGES[i]);
	printf("# out of step\n");
	uint16_t seen = w.unexpected;
	w.unexpected -= 1;
	add_tag(tag, UINT64_MAX, 64, BOTH);
	w.unexpected = seen;
	send_unexpected(IBV_TMH_EAGER, tag, 8);
	struct ibv_ops_wr sync = sync_op();
	post_ops(&sync, 1);
	send_matching(tag++, 8);
	printf("# removed too late\n");
	uint32_t handle = add_tag(tag, UINT64_MAX, 64, BOTH);
	send_message(IBV_TMH_EAGER, tag++, 8, 0);
	struct ibv_ops_wr late = del_op(handle, IBV_OPS_SIGNALED), *bad;
	late.wr_id = w.next_id++;
	CHECK(ibv_post_srq_ops(w.srq, &late, &bad) == 0);
	completion(w.recv_cq, "tags");
	completion(w.recv_cq, "tags");
	printf("# rendezvous\n");
	static const uint32_t READS[] = { 1, 300, 2304 };
	for (size_t i = 0; i < LENGTH(READS); i++) {
		add_tag(tag, UINT64_MAX, READS[i], BOTH);
		rendezvous(tag++, READS[i], true);
	}
	struct ibv_sge sge;
	struct ibv_ops_wr small = add_op(&sge, tag, UINT64_MAX, 64, BOTH);
	sge.addr = (uintptr_t)unprinted_tag();
	post_ops(&small, 1);
	rendezvous(tag++, 65, false);
	/* More operations than their queue has blocks, so that one starts at each. */
	for (int i = 0; i < 70; i++) {
		add_tag(tag, UINT64_MAX, 64, i % 3 ? BOTH : 0);
		send_matching(tag++, 8);
	}
}

static void random_add(uint64_t *next)
{
	struct ibv_sge sges[3];
	struct ibv_ops_wr wrs[4];
	unsigned count = 1 + below(3);
	if (count > TAGS - live_count)
		count = TAGS - live_count;
	for (unsigned i = 0; i < count; i++) {
		/* libmlx5 remembers only the count of additions, and requests it again if an addition
		 * without a count follows another operation with one. */
		bool has_count = below(2) || counted != w.unexpected;
		int flags = (below(2) ? IBV_OPS_SIGNALED : 0) | (has_count ? IBV_OPS_TM_SYNC : 0);
		counted = has_count ? w.unexpected : counted;
		struct tag *tag = &live[live_count + i];
		*tag = (struct tag){ .tag = (*next)++, .length = below(3) ? below(300) : below(2304) };
		wrs[i] = add_op(&sges[i], tag->tag, UINT64_MAX, tag->length, flags);
	}
	wrs[count] = sync_op();
	post_ops(wrs, (int)count + 1);
	/* The library chooses the handles. */
	for (unsigned i = 0; i < count; i++)
		live[live_count++].handle = wrs[i].tm.handle;
}

static struct tag random_tag(void)
{
	unsigned place = below(live_count);
	struct tag tag = live[place];
	live[place] = live[--live_count];
	return tag;
}

static void random_tags(uint64_t seed, unsigned long count)
{
	state = seed * 0x9e3779b97f4a7c15 + 1;
	uint64_t next = 1;
	for (; count > 0; count--) {
		unsigned choice = below(8);
		if (choice < 3 && live_count < TAGS) {
			random_add(&next);
		} else if (choice < 6 && live_count > 0) {
			struct tag tag = random_tag();
			send_matching(tag.tag, below(tag.length + 1));
		} else if (choice < 7 && live_count > 0) {
			int flags = below(2) ? IBV_OPS_SIGNALED : 0;
			struct ibv_ops_wr wrs[2] = { del_op(random_tag().handle, flags), sync_op() };
			post_ops(wrs, 2);
		} else {
			send_unexpected(below(3) ? IBV_TMH_EAGER : IBV_TMH_NO_TAG, 0, below(2000));
			struct ibv_ops_wr sync = sync_op();
			post_ops(&sync, 1);
		}
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
	static const char *const TRANSPORTS[] = { "rc", "uc", "ud", "xrc", "srq", "raw", "wq", "tm", NULL };
	static const char *const APIS[] = { "post", "wr", NULL };
	static const char *const SCRIPTS[] = { "shapes", "wraps",    "windows", "events",
					       "errors", "refusals", "segments", "tags",
					       "random", NULL };
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
	w.has_segments = !strcmp(argv[5], "segments");
	CHECK(!w.has_segments || has_frames());
	CHECK(w.transport == TM ? script >= 7 : script != 7);
	open_device(argv[1]);
	create_world();
	switch (script) {
	case 0: shapes(); break;
	case 1: wraps(); break;
	case 2: windows(); break;
	case 3: events(); break;
	case 4: errors(); break;
	case 5: refusals(); break;
	case 6: segments(); break;
	case 7: tags(); break;
	default:
		(w.transport == TM ? random_tags : random_requests)(argc > 6 ? strtoull(argv[6], NULL, 0) : 1,
								    argc > 7 ? strtoul(argv[7], NULL, 0) : 100);
	}
	destroy_world();
	printf("done\n");
	return 0;
}

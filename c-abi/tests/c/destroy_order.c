/* Objects of every type are destroyed in random orders. An object needed by others is busy and
 * stays intact; at the end all are gone. A type that the device lacks is rejected with
 * EOPNOTSUPP. */
#include <dlfcn.h>
#include <fcntl.h>

#include "test.h"

static uint64_t seed;

static uint32_t random_below(uint32_t limit)
{
	seed = seed * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(seed >> 33) % limit;
}

/* Each type needs only types before it. The types in the last line are from release 65. */
#define EACH_KIND(X)                                                                               \
	X(PD) X(TD) X(PARENT) X(PARENT_ALONE) X(CHANNEL) X(CQ) X(CQ_EX) X(CQ_PARENT)               \
	X(XRCD) X(SRQ) X(SRQ_PARENT) X(XSRQ) X(TM_SRQ)                                             \
	X(DM) X(MR) X(MR_PARENT) X(NULL_MR) X(ODP_MR) X(DM_MR) X(DMABUF_MR)                        \
	X(MW_1) X(MW_2) X(AH)                                                                      \
	X(QP) X(QP_UC) X(QP_UD) X(QP_RAW) X(QP_SRQ) X(QP_EX) X(XRC_SEND) X(XRC_RECV) X(XRC_OPENED) \
	X(WQ) X(RWQ_TABLE) X(COUNTERS) X(FLOW_ACTION) X(FLOW)                                      \
	X(IMPORTED_PD) X(IMPORTED_MR) X(IMPORTED_DM)                                               \
	X(BUF) X(BUF_MR) X(DMAH) X(COMP_CNTR)

#define NUMBER(kind) kind,
#define NAME(kind) #kind,
enum { EACH_KIND(NUMBER) KINDS };
static const char *const names[] = { EACH_KIND(NAME) };

#define BIT(kind) (1ull << (kind))

/* The types that each one needs. */
static const uint64_t needs[KINDS] = {
	[PARENT] = BIT(PD) | BIT(TD),
	[PARENT_ALONE] = BIT(PD),
	[CQ] = BIT(CHANNEL),
	[CQ_PARENT] = BIT(PARENT),
	[SRQ] = BIT(PD),
	[SRQ_PARENT] = BIT(PARENT_ALONE),
	[XSRQ] = BIT(PD) | BIT(XRCD) | BIT(CQ),
	[TM_SRQ] = BIT(PD) | BIT(CQ),
	[MR] = BIT(PD),
	[MR_PARENT] = BIT(PD),
	[ODP_MR] = BIT(PD),
	[DM_MR] = BIT(PD) | BIT(DM),
	[DMABUF_MR] = BIT(PD),
	/* It is bound. */
	[MW_1] = BIT(PD) | BIT(MR),
	[MW_2] = BIT(PD),
	[AH] = BIT(PD),
	[QP] = BIT(PD) | BIT(CQ),
	[QP_UC] = BIT(PARENT_ALONE) | BIT(CQ) | BIT(CQ_PARENT),
	[QP_UD] = BIT(PD) | BIT(CQ),
	[QP_RAW] = BIT(PD) | BIT(CQ),
	[QP_SRQ] = BIT(PD) | BIT(CQ) | BIT(CQ_EX) | BIT(SRQ),
	[QP_EX] = BIT(PARENT) | BIT(CQ_EX),
	[XRC_SEND] = BIT(PD) | BIT(CQ),
	[XRC_RECV] = BIT(XRCD),
	[XRC_OPENED] = BIT(XRCD),
	[WQ] = BIT(PD) | BIT(CQ),
	[RWQ_TABLE] = BIT(WQ),
	[FLOW] = BIT(QP_UD),
	[BUF_MR] = BIT(PD) | BIT(BUF),
};

/* Types that soft devices reject. All devices reject a table without a queue. */
static const int refused_by_soft[KINDS] = {
	[TM_SRQ] = EOPNOTSUPP,	    [DMABUF_MR] = EOPNOTSUPP,	[QP_RAW] = EOPNOTSUPP,	   [WQ] = EOPNOTSUPP,
	[RWQ_TABLE] = EINVAL,	    [COUNTERS] = EOPNOTSUPP,	[FLOW_ACTION] = EOPNOTSUPP, [FLOW] = EOPNOTSUPP,
	[IMPORTED_PD] = EOPNOTSUPP, [IMPORTED_MR] = EOPNOTSUPP, [IMPORTED_DM] = EOPNOTSUPP, [DMAH] = EOPNOTSUPP,
	[COMP_CNTR] = EOPNOTSUPP,
};

static struct ibv_context *context;
static void *objects[KINDS];
static uint8_t memory[4096];

/* Calls a function of release 65, whose types older headers lack. */
static void *call_65(const char *name, void *first, void *second, void *third, size_t length, int access)
{
	void *(*function)(void *, void *, void *, size_t, int) = NULL;
	*(void **)&function = dlsym(RTLD_DEFAULT, name);
	if (!function) {
		fprintf(stderr, "destroy_order.c: no symbol %s\n", name);
		exit(1);
	}
	return function(first, second, third, length, access);
}

static uint8_t *buffer;

static void *alloc_buf(void)
{
	void *(*function)(struct ibv_pd *, size_t, void **) = NULL, *buf = NULL;
	*(void **)&function = dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
	CHECK(function != NULL);
	buffer = function(objects[PD], 5000, &buf);
	CHECK(buffer != NULL);
	memset(buffer, 1, 5000);
	return buf;
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq, struct ibv_srq *srq,
			      enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = qp_attr(send_cq, type);
	attr.recv_cq = recv_cq;
	attr.srq = srq;
	return ibv_create_qp(pd, &attr);
}

static struct ibv_qp *make_group_member(void)
{
	struct ibv_qp *qp = make_qp(objects[PD], objects[CQ], objects[CQ], NULL, IBV_QPT_UD);
	if (qp) {
		union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 1, [14] = 2, [15] = 9 } };
		to_init(qp);
		IS(ibv_attach_mcast(qp, &group, 0), 0);
	}
	return qp;
}

static struct ibv_srq *make_srq(enum ibv_srq_type type)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = type,
					     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							  IBV_SRQ_INIT_ATTR_CQ,
					     .pd = objects[PD], .xrcd = objects[XRCD], .cq = objects[CQ],
					     .tm_cap = { .max_num_tags = 4, .max_ops = 4 } };
	attr.comp_mask |= type == IBV_SRQT_XRC ? IBV_SRQ_INIT_ATTR_XRCD : IBV_SRQ_INIT_ATTR_TM;
	return ibv_create_srq_ex(context, &attr);
}

static struct ibv_mw *make_bound_window(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(objects[PD], IBV_MW_TYPE_1);
	CHECK(mw != NULL);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(cq != NULL);
	struct ibv_qp *qp = make_qp(objects[PD], cq, cq, NULL, IBV_QPT_RC);
	CHECK(qp != NULL);
	to_init(qp);
	connect_qp(qp, qp->qp_num);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = objects[MR], .addr = (uintptr_t)memory, .length = 64,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	IS(ibv_bind_mw(qp, mw, &bind), 0);
	IS(success_of(cq).opcode, IBV_WC_BIND_MW);
	IS(ibv_destroy_qp(qp), 0);
	IS(ibv_destroy_cq(cq), 0);
	return mw;
}

static struct ibv_flow *make_flow(void)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = { .attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = PORT },
		   .eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth } };
	return ibv_create_flow(objects[QP_UD], &rule.attr);
}

static struct ibv_flow_action *make_flow_action(void)
{
	struct ibv_flow_action_esp esp = { .spi = 1 };
	struct ibv_flow_action_esp_keymat_aes_gcm keys = { .key_len = 16, .icv_len = 16, .salt = 1, .iv = 1 };
	struct ibv_flow_action_esp_attr attr = { .esp_attr = &esp,
						 .keymat_proto = IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM,
						 .keymat_len = sizeof keys, .keymat_ptr = &keys };
	return ibv_create_flow_action_esp(context, &attr);
}

static void *make(int kind)
{
	struct ibv_cq *cq_ex = objects[CQ_EX] ? ibv_cq_ex_to_cq(objects[CQ_EX]) : NULL;
	struct ibv_qp_init_attr_ex qp_ex = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
					     .xrcd = objects[XRCD] };
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE,
					 .xrcd = objects[XRCD], .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_ah_attr path;
	uint32_t zeros[8] = { 0 };
	switch (kind) {
	case PD:
		return ibv_alloc_pd(context);
	case TD:
		return ibv_alloc_td(context, &(struct ibv_td_init_attr){ .comp_mask = 0 });
	case PARENT:
		return ibv_alloc_parent_domain(context, &(struct ibv_parent_domain_init_attr){
								.pd = objects[PD], .td = objects[TD] });
	case PARENT_ALONE:
		return ibv_alloc_parent_domain(context,
					       &(struct ibv_parent_domain_init_attr){ .pd = objects[PD] });
	case CHANNEL:
		return ibv_create_comp_channel(context);
	case CQ:
		return ibv_create_cq(context, 16, NULL, objects[CHANNEL], 0);
	case CQ_EX:
		return ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){ .cqe = 16 });
	case CQ_PARENT:
		return ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){
							 .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
							 .parent_domain = objects[PARENT] });
	case XRCD:
		return ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){
						      .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
						      .fd = -1, .oflags = O_CREAT });
	case SRQ:
		return ibv_create_srq(objects[PD], &srq);
	case SRQ_PARENT:
		return ibv_create_srq(objects[PARENT_ALONE], &srq);
	case XSRQ:
		return make_srq(IBV_SRQT_XRC);
	case TM_SRQ:
		return make_srq(IBV_SRQT_TM);
	case DM:
		return ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){ .length = 4096 });
	case MR:
		return ibv_reg_mr(objects[PD], memory, sizeof memory, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	case MR_PARENT:
		return ibv_reg_mr(objects[PARENT_ALONE], memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	case NULL_MR:
		return ibv_alloc_null_mr(objects[PD]);
	case ODP_MR:
		return ibv_reg_mr(objects[PD], NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	case DM_MR:
		return ibv_reg_dm_mr(objects[PD], objects[DM], 64, 128,
				     IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	case DMABUF_MR:
		return ibv_reg_dmabuf_mr(objects[PD], 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE);
	case MW_1:
		return make_bound_window();
	case MW_2:
		return ibv_alloc_mw(objects[PD], IBV_MW_TYPE_2);
	case AH:
		path = own_path(context);
		return ibv_create_ah(objects[PD], &path);
	case QP:
		return make_qp(objects[PD], objects[CQ], objects[CQ], NULL, IBV_QPT_RC);
	case QP_UC:
		return make_qp(objects[PARENT_ALONE], objects[CQ], ibv_cq_ex_to_cq(objects[CQ_PARENT]), NULL, IBV_QPT_UC);
	case QP_UD:
		return make_group_member();
	case QP_RAW:
		return make_qp(objects[PD], objects[CQ], objects[CQ], NULL, IBV_QPT_RAW_PACKET);
	case QP_SRQ:
		return make_qp(objects[PD], objects[CQ], cq_ex, objects[SRQ], IBV_QPT_RC);
	case QP_EX:
		return create_qp_ex(objects[PARENT], cq_ex, IBV_QPT_RC, WR_OPS);
	case XRC_SEND:
		return make_qp(objects[PD], objects[CQ], objects[CQ], NULL, IBV_QPT_XRC_SEND);
	case XRC_RECV:
		return ibv_create_qp_ex(context, &qp_ex);
	case XRC_OPENED:
		open.qp_num = ((struct ibv_qp *)objects[XRC_RECV])->qp_num;
		return ibv_open_qp(context, &open);
	case WQ:
		return ibv_create_wq(context, &(struct ibv_wq_init_attr){ .wq_type = IBV_WQT_RQ, .max_wr = 4,
									  .max_sge = 1, .pd = objects[PD],
									  .cq = objects[CQ] });
	case RWQ_TABLE:
		return ibv_create_rwq_ind_table(context, &(struct ibv_rwq_ind_table_init_attr){
								 .ind_tbl = (struct ibv_wq **)&objects[WQ] });
	case COUNTERS:
		return ibv_create_counters(context, &(struct ibv_counters_init_attr){ .comp_mask = 0 });
	case FLOW_ACTION:
		return make_flow_action();
	case FLOW:
		return make_flow();
	case IMPORTED_PD:
		return ibv_import_pd(context, ((struct ibv_pd *)objects[PD])->handle);
	case IMPORTED_MR:
		return ibv_import_mr(objects[PD], ((struct ibv_mr *)objects[MR])->handle);
	case IMPORTED_DM:
		return ibv_import_dm(context, ((struct ibv_dm *)objects[DM])->handle);
	case BUF:
		return alloc_buf();
	case BUF_MR:
		return call_65("ibv_reg_buf_mr", objects[PD], objects[BUF], buffer, 5000, ALL_ACCESS);
	case DMAH:
		return call_65("ibv_alloc_dmah", context, zeros, NULL, 0, 0);
	case COMP_CNTR:
		return call_65("ibv_create_comp_cntr", context, zeros, NULL, 0, 0);
	default:
		return NULL;
	}
}

static int destroy(int kind)
{
	switch (kind) {
	case PD:
	case PARENT:
	case PARENT_ALONE:
		return ibv_dealloc_pd(objects[kind]);
	case TD:
		return ibv_dealloc_td(objects[kind]);
	case CHANNEL:
		return ibv_destroy_comp_channel(objects[kind]);
	case CQ:
		return ibv_destroy_cq(objects[kind]);
	case CQ_EX:
	case CQ_PARENT:
		return ibv_destroy_cq(ibv_cq_ex_to_cq(objects[kind]));
	case SRQ:
	case SRQ_PARENT:
	case XSRQ:
	case TM_SRQ:
		return ibv_destroy_srq(objects[kind]);
	case XRCD:
		return ibv_close_xrcd(objects[kind]);
	case DM:
		return ibv_free_dm(objects[kind]);
	case MR:
	case MR_PARENT:
	case NULL_MR:
	case ODP_MR:
	case DM_MR:
	case DMABUF_MR:
	case BUF_MR:
		return ibv_dereg_mr(objects[kind]);
	case MW_1:
	case MW_2:
		return ibv_dealloc_mw(objects[kind]);
	case AH:
		return ibv_destroy_ah(objects[kind]);
	case WQ:
		return ibv_destroy_wq(objects[kind]);
	case RWQ_TABLE:
		return ibv_destroy_rwq_ind_table(objects[kind]);
	case COUNTERS:
		return ibv_destroy_counters(objects[kind]);
	case FLOW_ACTION:
		return ibv_destroy_flow_action(objects[kind]);
	case FLOW:
		return ibv_destroy_flow(objects[kind]);
	case IMPORTED_PD:
		return ibv_unimport_pd(objects[kind]), 0;
	case IMPORTED_MR:
		return ibv_unimport_mr(objects[kind]), 0;
	case IMPORTED_DM:
		return ibv_unimport_dm(objects[kind]), 0;
	case BUF:
		return call_65("ibv_free_buf", objects[kind], NULL, NULL, 0, 0), 0;
	case DMAH:
		return (int)(intptr_t)call_65("ibv_dealloc_dmah", objects[kind], NULL, NULL, 0, 0);
	case COMP_CNTR:
		return (int)(intptr_t)call_65("ibv_destroy_comp_cntr", objects[kind], NULL, NULL, 0, 0);
	default:
		return ibv_destroy_qp(objects[kind]);
	}
}

static bool is_needed(int kind)
{
	for (int other = 0; other < KINDS; other++)
		if (objects[other] && needs[other] & BIT(kind))
			return true;
	return false;
}

/* Creates an object of each type that the device supports, and returns their number. */
static int make_all(void)
{
	bool is_soft = !strncmp(ibv_get_device_name(context->device), "soft", 4);
	int made = 0;
	for (int kind = 0; kind < KINDS; kind++) {
		int refused = refused_by_soft[kind];
		errno = 0;
		objects[kind] = make(kind);
		int set = objects[kind] ? 0 : errno;
		if (is_soft ? set != refused : set && set != EOPNOTSUPP && set != refused) {
			fprintf(stderr, "destroy_order.c: %s is made or refused with %d (%s) rather than %d\n",
				names[kind], set, strerror(set), refused);
			exit(1);
		}
		made += !set;
	}
	return made;
}

static void one_order(void)
{
	for (int left = make_all(); left > 0;) {
		int kind = (int)random_below(KINDS);
		/* C has no way to report that freeing a buffer failed. */
		if (!objects[kind] || (kind == BUF && is_needed(kind)))
			continue;
		int wanted = is_needed(kind) ? EBUSY : 0;
		int result = destroy(kind);
		if (result != wanted) {
			fprintf(stderr, "destroy_order.c: the end of %s is %d (%s) rather than %d, with", names[kind],
				result, strerror(result), wanted);
			for (int other = 0; other < KINDS; other++)
				if (objects[other])
					fprintf(stderr, " %s", names[other]);
			fprintf(stderr, "\n");
			exit(1);
		}
		if (result == 0) {
			objects[kind] = NULL;
			left--;
		}
	}
}

/* C closes the device with all remaining objects; the kernel or the soft device's engine destroys
 * them. */
static void a_device_closes_with_objects(void)
{
	struct ibv_context *other = open_device();
	struct side side = make_side(other, IBV_QPT_RC, 4096), peer = make_side(context, IBV_QPT_RC, 4096);
	connect_pair(side.qp, peer.qp);
	struct ibv_mw *mw = ibv_alloc_mw(side.pd, IBV_MW_TYPE_2);
	CHECK(mw != NULL);
	struct ibv_sge sge = sge_of(&peer, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)side.memory, .rkey = side.mr->rkey } }, *bad;
	memset(peer.memory, 1, 8);
	IS(ibv_post_send(peer.qp, &wr, &bad), 0);
	success_of(peer.cq);
	IS(side.memory[7], 1);
	IS(ibv_close_device(other), 0);
	/* A peer can no longer access the memory. */
	memset(peer.memory, 2, 8);
	IS(ibv_post_send(peer.qp, &wr, &bad), 0);
	IS(completion_of(peer.cq).status, IBV_WC_RETRY_EXC_ERR);
	IS(side.memory[7], 1);
	free(side.memory);
	destroy_side(&peer);
}

int main(int argc, char **argv)
{
	context = open_device();
	for (int i = 0; i < 10 * rounds(argc, argv); i++)
		one_order();
	/* The library keeps the memory of objects that were not destroyed, which leak checkers
	 * report. */
	if (!getenv("VERBS_TEST_CHECKED")) {
		a_device_closes_with_objects();
		CHECK(make_all() > 0);
	}
	IS(ibv_close_device(context), 0);
	return 0;
}

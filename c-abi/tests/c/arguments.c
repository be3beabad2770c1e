/* Calls with odd arguments: too large, too small, unknown bits, and fields that the manual pages
 * call ignored. Prints a line for each call, `name: result`, with the names of errnos, so that
 * outputs of two libraries or devices can be compared. No call of the program crashes rdma-core's
 * library.
 *
 * The device is VERBS_TEST_DEVICE, or the first one. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PORT = 1, HUGE_COUNT = 1 << 30, MAX_ENTRIES = 64, UNSET = 1 << 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_ah_attr path;
static bool is_ethernet, is_connectx;
/* Two pages; regions use the first. */
static char *memory;
static size_t page;

static const char *name_of(int error)
{
	if (error == 0)
		return "ok";
	if (error == UNSET)
		return "refused without an errno";
	const char *name = strerrorname_np(error < 0 ? -error : error);
	return name ? name : "?";
}

/* Prints the rest of a line. */
static void say(int error, const char *name, ...)
{
	va_list list;
	va_start(list, name);
	vprintf(name, list);
	va_end(list);
	printf(": %s\n", name_of(error));
	fflush(stdout);
}

static void need(const void *object, const char *what)
{
	if (!object) {
		fprintf(stderr, "arguments.c: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

/* Creates an object, prints whether that succeeded, and destroys it with `end`. */
#define MAKE(end, expression, ...)                                                                 \
	do {                                                                                       \
		errno = 0;                                                                         \
		__auto_type object_ = (expression);                                                \
		/* Some calls of rdma-core's library leave the errno. */                           \
		say(object_ ? 0 : errno ? errno : UNSET, __VA_ARGS__);                             \
		if (object_)                                                                       \
			end(object_);                                                              \
	} while (0)

static void end_cq_ex(struct ibv_cq_ex *cq_ex)
{
	ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex));
}

/* The result of a call that returns -1 and sets errno. */
static int set_by(int result)
{
	return result == 0 ? 0 : errno;
}

static void open_device(void)
{
	const char *wanted = getenv("VERBS_TEST_DEVICE");
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(list, "devices");
	for (int i = 0; list[i] && !context; i++)
		if (!wanted || !strcmp(wanted, ibv_get_device_name(list[i])))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	need(context, "the device");
	is_connectx = !strncmp(ibv_get_device_name(context->device), "mlx5", 4);
	pd = ibv_alloc_pd(context);
	need(pd, "a protection domain");
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	need(cq, "a completion queue");
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	srq = ibv_create_srq(pd, &init);
	need(srq, "a shared receive queue");
	page = (size_t)sysconf(_SC_PAGESIZE);
	memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(memory == MAP_FAILED ? NULL : memory, "memory");
}

/* Finds a path to the port itself: over IPv4 on Ethernet if such a GID exists. */
static void find_path(void)
{
	struct ibv_port_attr port;
	if (ibv_query_port(context, PORT, &port)) {
		fprintf(stderr, "arguments.c: no port\n");
		exit(1);
	}
	is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
	path = (struct ibv_ah_attr){ .port_num = PORT, .dlid = port.lid };
	path.grh.hop_limit = 1;
	struct ibv_gid_entry entries[MAX_ENTRIES];
	ssize_t count = ibv_query_gid_table(context, entries, MAX_ENTRIES, 0);
	for (ssize_t i = 0; i < count && is_ethernet; i++) {
		const uint8_t *raw = entries[i].gid.raw;
		if (entries[i].gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		path.is_global = 1;
		path.grh.dgid = entries[i].gid;
		path.grh.sgid_index = (uint8_t)entries[i].gid_index;
		if (raw[10] == 0xff && raw[11] == 0xff)
			break;
	}
}

static void completion_queues(void)
{
	static const int sizes[] = { 0, -1, 1, HUGE_COUNT }, vectors[] = { -1, 1000 };
	for (int i = 0; i < 4; i++)
		MAKE(ibv_destroy_cq, ibv_create_cq(context, sizes[i], NULL, NULL, 0), "create_cq %d", sizes[i]);
	for (int i = 0; i < 2; i++)
		MAKE(ibv_destroy_cq, ibv_create_cq(context, 1, NULL, NULL, vectors[i]), "create_cq vector %d",
		     vectors[i]);
	static const int resized[] = { 0, -1, 64, HUGE_COUNT };
	for (int i = 0; i < 4; i++)
		say(ibv_resize_cq(cq, resized[i]), "resize_cq %d", resized[i]);
	say(ibv_req_notify_cq(cq, 2), "req_notify_cq solicited_only 2");

	struct ibv_cq_init_attr_ex init = { .cqe = 4 };
#define CREATE(...) MAKE(end_cq_ex, ibv_create_cq_ex(context, &init), __VA_ARGS__)
	CREATE("create_cq_ex");
	init.wc_flags = 1ull << 40;
	CREATE("create_cq_ex wc_flags bit 40");
	init.wc_flags = 1ull << 20;
	CREATE("create_cq_ex wc_flags bit 20");
	init.wc_flags = 0;
	init.comp_mask = 1 << 9;
	CREATE("create_cq_ex comp_mask bit 9");
	init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	static const uint32_t flags[] = { 0, 1u << 9, 1u << 31, IBV_CREATE_CQ_ATTR_SINGLE_THREADED };
	for (int i = 0; i < 4; i++) {
		init.flags = flags[i];
		CREATE("create_cq_ex flags %#x", flags[i]);
	}
	memset(&init, 0xff, sizeof init);
	init = (struct ibv_cq_init_attr_ex){ .cqe = 4, .flags = ~0u, .parent_domain = (void *)1 };
	CREATE("create_cq_ex values outside comp_mask");
#undef CREATE
	static const uint32_t masks[] = { 0, IBV_CQ_ATTR_MODERATE, 2, 3 };
	for (int i = 0; i < 4; i++) {
		struct ibv_modify_cq_attr attr = { .attr_mask = masks[i], .moderate = { 1, 1 } };
		/* Devices without moderation reject every mask. */
		int error = ibv_modify_cq(cq, &attr);
		say(error == ENOSYS ? EOPNOTSUPP : error, "modify_cq attr_mask %u", masks[i]);
	}
}

static struct ibv_qp *create(unsigned type, struct ibv_srq *with, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = with, .qp_type = type, .cap = cap };
	return ibv_create_qp(pd, &init);
}

static void queue_pairs(void)
{
	static const struct ibv_qp_cap usual = { 4, 4, 1, 1, 0 };
	static const unsigned types[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 77, 0x102 };
	for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
		/* A raw packet queue pair needs a device with frames. */
		if (types[i] == IBV_QPT_RAW_PACKET)
			continue;
		MAKE(ibv_destroy_qp, create(types[i], NULL, usual), "create_qp type %#x", types[i]);
	}
	static const struct {
		const char *name;
		struct ibv_qp_cap cap;
	} sizes[] = {
		{ "all sizes 0", { 0, 0, 0, 0, 0 } },
		{ "nothing to send", { 0, 4, 0, 1, 0 } },
		{ "nothing to receive", { 4, 0, 1, 0, 0 } },
		{ "no elements", { 4, 4, 0, 0, 0 } },
		{ "inline 2^20", { 4, 4, 1, 1, 1 << 20 } },
		{ "inline -1", { 4, 4, 1, 1, ~0u } },
		{ "send elements 1000", { 4, 4, 1000, 1, 0 } },
		{ "receive elements 1000", { 4, 4, 1, 1000, 0 } },
		{ "send requests 2^24", { 1 << 24, 4, 1, 1, 0 } },
		{ "send requests -1", { ~0u, 4, 1, 1, 0 } },
		{ "receive requests 2^24", { 4, 1 << 24, 1, 1, 0 } },
		{ "receive requests -1", { 4, ~0u, 1, 1, 0 } },
		{ "nothing to send, elements 1000", { 0, 4, 1000, 1, 0 } },
		{ "nothing to send, inline 2^20", { 0, 4, 0, 1, 1 << 20 } },
		{ "nothing to receive, elements 1000", { 4, 0, 1, 1000, 0 } },
	};
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
		MAKE(ibv_destroy_qp, create(IBV_QPT_RC, NULL, sizes[i].cap), "create_qp %s", sizes[i].name);
	static const unsigned requests[] = { 1, 1 << 24, ~0u }, elements[] = { 1, 1000, ~0u };
	for (unsigned type = IBV_QPT_RC; type <= IBV_QPT_UD; type++)
		for (int i = 0; i < 3; i++)
			for (int k = 0; k < 3; k++) {
				struct ibv_qp_cap cap = { 4, requests[i], 1, elements[k], 0 };
				MAKE(ibv_destroy_qp, create(type, srq, cap),
				     "create_qp type %u with a shared queue, receive requests %u, elements %u", type,
				     requests[i], elements[k]);
			}
	struct ibv_qp_init_attr all = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = usual,
					.sq_sig_all = 0x100 };
	MAKE(ibv_destroy_qp, ibv_create_qp(pd, &all), "create_qp sq_sig_all 0x100");

	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = usual,
					    .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
	const struct ibv_qp_init_attr_ex plain = init;
#define CREATE(...)                                                                                \
	do {                                                                                       \
		MAKE(ibv_destroy_qp, ibv_create_qp_ex(context, &init), __VA_ARGS__);               \
		init = plain;                                                                      \
	} while (0)
	CREATE("create_qp_ex");
	init.comp_mask = 0;
	CREATE("create_qp_ex without a domain");
	init.comp_mask |= 1 << 20;
	CREATE("create_qp_ex comp_mask bit 20");
	init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	CREATE("create_qp_ex create_flags 0");
	static const uint32_t flags[] = { 1u << 25, 1u << 31 };
	for (int i = 0; i < 2; i++) {
		init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
		init.create_flags = flags[i];
		CREATE("create_qp_ex create_flags %#x", flags[i]);
	}
	static const uint64_t ops[] = { 0, 1ull << 40, IBV_QP_EX_WITH_SEND };
	for (int i = 0; i < 3; i++) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = ops[i];
		CREATE("create_qp_ex send_ops_flags %#llx", (unsigned long long)ops[i]);
	}
	init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.qp_type = IBV_QPT_UD;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	CREATE("create_qp_ex reads of datagrams");
	init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	CREATE("create_qp_ex max_tso_header 0");
	init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
	CREATE("create_qp_ex RC with a null XRC domain");
	memset(&init, 0xff, sizeof init);
	init.qp_context = NULL;
	init.send_cq = init.recv_cq = cq;
	init.srq = NULL;
	init.cap = usual;
	init.qp_type = IBV_QPT_RC;
	init.sq_sig_all = 0;
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	init.pd = pd;
	CREATE("create_qp_ex values outside comp_mask");
#undef CREATE
}

static void shared_queues(void)
{
	static const struct {
		const char *name;
		struct ibv_srq_attr attr;
	} sizes[] = {
		{ "no requests", { 0, 1, 0 } },	      { "requests 2^24", { 1 << 24, 1, 0 } },
		{ "requests -1", { ~0u, 1, 0 } },     { "no elements", { 4, 0, 0 } },
		{ "elements 1000", { 4, 1000, 0 } },  { "elements -1", { 4, ~0u, 0 } },
		{ "srq_limit 4", { 4, 1, 4 } },	      { "srq_limit 100", { 4, 1, 100 } },
		{ "srq_limit -1", { 4, 1, ~0u } },
	};
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct ibv_srq_init_attr init = { .attr = sizes[i].attr };
		MAKE(ibv_destroy_srq, ibv_create_srq(pd, &init), "create_srq %s", sizes[i].name);
	}
	static const struct {
		const char *name;
		struct ibv_srq_attr attr;
		int mask;
	} changes[] = {
		{ "srq_limit 100", { 0, 0, 100 }, IBV_SRQ_LIMIT },
		{ "srq_limit -1", { 0, 0, ~0u }, IBV_SRQ_LIMIT },
		{ "srq_limit 1, values outside the mask", { ~0u, ~0u, 1 }, IBV_SRQ_LIMIT },
		{ "srq_limit 0", { 0, 0, 0 }, IBV_SRQ_LIMIT },
		{ "mask 0", { ~0u, ~0u, ~0u }, 0 },
		{ "mask 8", { ~0u, ~0u, ~0u }, 8 },
		{ "mask 8 and srq_limit 1", { 0, 0, 1 }, 8 | IBV_SRQ_LIMIT },
		{ "mask bit 30", { 0, 0, 1 }, 1 << 30 },
	};
	for (unsigned i = 0; i < sizeof changes / sizeof *changes; i++) {
		struct ibv_srq_attr attr = changes[i].attr;
		say(ibv_modify_srq(srq, &attr, changes[i].mask), "modify_srq %s", changes[i].name);
	}
	struct ibv_srq_init_attr_ex init = { .attr = { 4, 1, 0 }, .pd = pd, .xrcd = (void *)1, .cq = (void *)1,
					     .tm_cap = { ~0u, ~0u } };
	static const struct {
		const char *name;
		uint32_t mask;
		unsigned type;
	} kinds[] = {
		{ "values outside comp_mask", IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, IBV_SRQT_BASIC },
		{ "without a type", IBV_SRQ_INIT_ATTR_PD, 77 },
		{ "type 77", IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, 77 },
		{ "comp_mask bit 20", 1 << 20 | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, IBV_SRQT_BASIC },
	};
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		init.comp_mask = kinds[i].mask;
		init.srq_type = kinds[i].type;
		MAKE(ibv_destroy_srq, ibv_create_srq_ex(context, &init), "create_srq_ex %s", kinds[i].name);
	}
}

/* Queue pairs of the extended connected service, which some devices lack. */
static void extended_connections(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1,
					   .oflags = 0100 };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &init);
	say(xrcd ? 0 : errno, "open_xrcd");
	if (!xrcd)
		return;
	struct ibv_qp_init_attr_ex initiator = { .qp_type = IBV_QPT_XRC_SEND,
						 .send_cq = cq,
						 .cap = { 4, ~0u, 1, ~0u, 0 },
						 .comp_mask = IBV_QP_INIT_ATTR_PD,
						 .pd = pd };
	MAKE(ibv_destroy_qp, ibv_create_qp_ex(context, &initiator), "create_qp_ex initiator, receive sizes -1");
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV,
					      .cap = { ~0u, ~0u, ~0u, ~0u, ~0u },
					      .comp_mask = IBV_QP_INIT_ATTR_XRCD,
					      .xrcd = xrcd };
	MAKE(ibv_destroy_qp, ibv_create_qp_ex(context, &target), "create_qp_ex target, all sizes -1");
	ibv_close_xrcd(xrcd);
	static const uint32_t masks[] = { 0, 1, 2, 7, 1u << 20 };
	for (int i = 0; i < 5; i++) {
		init.comp_mask = masks[i];
		MAKE(ibv_close_xrcd, ibv_open_xrcd(context, &init), "open_xrcd comp_mask %#x", masks[i]);
	}
	init.comp_mask = 3;
	init.fd = -2;
	MAKE(ibv_close_xrcd, ibv_open_xrcd(context, &init), "open_xrcd fd -2");
}

static struct ibv_mr *reg(void *addr, size_t length, unsigned access)
{
	return (ibv_reg_mr)(pd, addr, length, (int)access);
}

static void regions(void)
{
	enum { LOCAL = IBV_ACCESS_LOCAL_WRITE };
#define REG(addr, length, access, ...) MAKE(ibv_dereg_mr, reg(addr, length, access), __VA_ARGS__)
	REG(memory, page, 0, "reg_mr access 0");
	/* The kernel logs a warning for ConnectX. */
	if (!is_connectx)
		REG(memory + 1, 0, LOCAL, "reg_mr no bytes");
	REG(memory, 0, LOCAL, "reg_mr no bytes at the start of a page");
	REG(NULL, 0, LOCAL, "reg_mr no bytes at null");
	REG(NULL, 64, LOCAL, "reg_mr null");
	REG((void *)0x1000, 64, LOCAL, "reg_mr not mapped");
	REG((void *)-64, 128, LOCAL, "reg_mr beyond the end");
	REG((void *)-4096, 4096, LOCAL, "reg_mr up to the end");
	REG((void *)-4096, 4095, LOCAL, "reg_mr almost up to the end");
	REG(memory, SIZE_MAX, LOCAL, "reg_mr length -1");
	REG(memory, 64, IBV_ACCESS_REMOTE_WRITE, "reg_mr remote write alone");
	REG(memory, 64, IBV_ACCESS_REMOTE_ATOMIC, "reg_mr remote atomic alone");
	REG(memory, 64, IBV_ACCESS_ZERO_BASED | LOCAL, "reg_mr zero based");
	/* Bit 6 is on-demand paging, bits 8 and 9 are flushes: optional features of devices. */
	for (int bit = 7; bit < 32; bit++)
		if (bit != 8 && bit != 9)
			REG(memory, 64, 1u << bit | LOCAL, "reg_mr access bit %d", bit);
	static const struct {
		const char *name;
		int protection;
	} maps[] = { { "no access", PROT_NONE }, { "reads", PROT_READ }, { "writes", PROT_WRITE } };
	for (int i = 0; i < 3; i++) {
		void *map = mmap(NULL, page, maps[i].protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REG(map, page, 0, "reg_mr of memory for %s, access 0", maps[i].name);
		REG(map, page, IBV_ACCESS_REMOTE_READ, "reg_mr of memory for %s, remote read", maps[i].name);
		REG(map, page, LOCAL, "reg_mr of memory for %s, local write", maps[i].name);
		munmap(map, page);
	}
	/* A mapped page and an unmapped one. */
	munmap(memory + page, page);
	REG(memory, page + 1, LOCAL, "reg_mr of a mapped page and a byte more");
#undef REG
	MAKE(ibv_dereg_mr, ibv_reg_mr_iova2(pd, memory, 64, 0x123, LOCAL), "reg_mr_iova 0x123");
	MAKE(ibv_dereg_mr, ibv_reg_mr_iova2(pd, memory, 64, 0x1000, LOCAL), "reg_mr_iova 0x1000");
	MAKE(ibv_dereg_mr, ibv_reg_mr_iova2(pd, memory, page, ~0ull - page + 1, LOCAL), "reg_mr_iova at the end");
	MAKE(ibv_dereg_mr, ibv_reg_mr_iova2(pd, memory + page - 64, 64, ~0ull - 10, LOCAL),
	     "reg_mr_iova beyond the end");

	struct ibv_mr *mr = reg(memory, page, LOCAL);
	need(mr, "a region");
	/* rdma-core's result describes the remaining region; only the errno is compared here. */
	static const int flags[] = { 0, 8, 1 << 30 };
	for (int i = 0; i < 3; i++) {
		errno = 0;
		int result = ibv_rereg_mr(mr, flags[i], pd, memory, 64, LOCAL);
		say(result ? errno : 0, "rereg_mr flags %#x", flags[i]);
	}
	ibv_dereg_mr(mr);
	for (int type = 0; type < 4; type++)
		MAKE(ibv_dealloc_mw, ibv_alloc_mw(pd, (enum ibv_mw_type)type), "alloc_mw type %d", type);
}

static void address_handles(void)
{
	struct ibv_ah_attr attr = path;
#define CREATE(...)                                                                                \
	do {                                                                                       \
		MAKE(ibv_destroy_ah, ibv_create_ah(pd, &attr), __VA_ARGS__);                       \
		attr = path;                                                                       \
	} while (0)
	CREATE("create_ah");
	attr.sl = 16;
	CREATE("create_ah sl 16");
	attr.sl = 255;
	CREATE("create_ah sl 255");
	attr.src_path_bits = 200;
	CREATE("create_ah src_path_bits 200");
	attr.static_rate = 31;
	CREATE("create_ah static_rate 31");
	static const uint8_t ports[] = { 0, 2, 255 };
	for (int i = 0; i < 3; i++) {
		attr.port_num = ports[i];
		CREATE("create_ah port %u", ports[i]);
	}
	attr.is_global = 0x100 * path.is_global;
	CREATE("create_ah is_global 0x100");
	if (!is_ethernet)
		return;
	attr.is_global = 0;
	CREATE("create_ah not global");
	attr.grh.sgid_index = 200;
	CREATE("create_ah sgid_index 200");
	attr.grh.flow_label = 1 << 20;
	CREATE("create_ah flow_label 2^20");
	attr.grh.hop_limit = 0;
	CREATE("create_ah hop_limit 0");
#undef CREATE
}

static void queries(void)
{
	struct ibv_port_attr port;
	static const uint8_t ports[] = { 0, 2, 255 };
	for (int i = 0; i < 3; i++)
		say(ibv_query_port(context, ports[i], &port), "query_port %u", ports[i]);
	union ibv_gid gid;
	say(set_by(ibv_query_gid(context, PORT, -1, &gid)) != 0 ? EINVAL : 0, "query_gid -1");
	say(set_by(ibv_query_gid(context, PORT, 1 << 20, &gid)) != 0 ? EINVAL : 0, "query_gid 2^20");
	uint16_t pkey;
	say(ibv_query_pkey(context, PORT, 0, &pkey), "query_pkey 0");
	say(ibv_query_pkey(context, PORT, -1, &pkey) != 0 ? EINVAL : 0, "query_pkey -1");
	say(ibv_query_pkey(context, PORT, 1 << 20, &pkey) != 0 ? EINVAL : 0, "query_pkey 2^20");
	struct ibv_qp *qp = create(IBV_QPT_RC, NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 });
	need(qp, "a queue pair");
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	static const int masks[] = { 0, IBV_QP_STATE, 1 << 24, 1 << 25, 1 << 30, ~0 };
	for (int i = 0; i < 6; i++)
		say(ibv_query_qp(qp, &attr, masks[i], &init), "query_qp mask %#x", masks[i]);
	ibv_destroy_qp(qp);
}

static const int INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			    IBV_QP_MAX_QP_RD_ATOMIC;

/* The attributes of a queue pair connected to itself. */
struct steps {
	struct ibv_qp_attr init, rtr, rts;
	int init_mask, rtr_mask, rts_mask;
};

static struct steps steps_of(uint32_t qp_num)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = 7 };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp_num,
				   .rq_psn = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = path };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 14, .retry_cnt = 7,
				   .rnr_retry = 7, .max_rd_atomic = 1 };
	return (struct steps){ init, rtr, rts, INIT_MASK, RTR_MASK, RTS_MASK };
}

/* Moves a new queue pair to RTS after `change` has changed an attribute of a step. Prints the
 * rejected step and the numbers that the device accepted. */
static void connect_with(const char *name, void (*change)(struct steps *))
{
	struct ibv_qp *qp = create(IBV_QPT_RC, NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 });
	need(qp, "a queue pair");
	struct steps steps = steps_of(qp->qp_num);
	change(&steps);
	int init = ibv_modify_qp(qp, &steps.init, steps.init_mask);
	int rtr = init ? init : ibv_modify_qp(qp, &steps.rtr, steps.rtr_mask);
	int rts = rtr ? rtr : ibv_modify_qp(qp, &steps.rts, steps.rts_mask);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr cap;
	if (rts)
		printf("modify_qp %s: to %s %s\n", name, init ? "INIT" : rtr ? "RTR" : "RTS", name_of(rts));
	else if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &cap))
		printf("modify_qp %s: ok\n", name);
	else
		printf("modify_qp %s: ok, rq_psn %#x sq_psn %#x dest %s timer %u timeout %u retries %u %u "
		       "reads %u %u mtu %d pkey_index %u\n",
		       name, attr.rq_psn, attr.sq_psn, attr.dest_qp_num == qp->qp_num ? "itself" : "another",
		       attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_dest_rd_atomic,
		       attr.max_rd_atomic, attr.path_mtu, attr.pkey_index);
	fflush(stdout);
	ibv_destroy_qp(qp);
}

/* A change of one attribute, as one of GCC's nested functions; no trampoline is needed here. */
#define WITH(text, ...)                                                                            \
	do {                                                                                       \
		void change_(struct steps *s) { __VA_ARGS__; }                                     \
		connect_with(text, change_);                                                       \
	} while (0)

static void numbers_of_modify_qp(void)
{
	WITH("nothing odd", (void)s);
	WITH("rq_psn of 32 bits", s->rtr.rq_psn = 0xff000001);
	WITH("sq_psn of 32 bits", s->rts.sq_psn = 0xff000001);
	WITH("dest_qp_num of 32 bits", s->rtr.dest_qp_num |= 0xff000000);
	WITH("min_rnr_timer 32", s->rtr.min_rnr_timer = 32);
	WITH("min_rnr_timer 255", s->rtr.min_rnr_timer = 255);
	WITH("timeout 32", s->rts.timeout = 32);
	WITH("timeout 63", s->rts.timeout = 63);
	WITH("timeout 255", s->rts.timeout = 255);
	WITH("retry_cnt 8", s->rts.retry_cnt = 8);
	WITH("retry_cnt 255", s->rts.retry_cnt = 255);
	WITH("rnr_retry 8", s->rts.rnr_retry = 8);
	WITH("rnr_retry 255", s->rts.rnr_retry = 255);
	WITH("max_dest_rd_atomic 0", s->rtr.max_dest_rd_atomic = 0);
	WITH("max_dest_rd_atomic 255", s->rtr.max_dest_rd_atomic = 255);
	WITH("max_rd_atomic 0", s->rts.max_rd_atomic = 0);
	WITH("max_rd_atomic 255", s->rts.max_rd_atomic = 255);
	WITH("path_mtu 0", s->rtr.path_mtu = 0);
	WITH("path_mtu 6", s->rtr.path_mtu = 6);
	WITH("path_mtu 255", s->rtr.path_mtu = 255);
	WITH("path_mtu 0x103", s->rtr.path_mtu = 0x103);
	/* The driver queries a ConnectX, whose Ethernet ports have one key. */
	if (!is_connectx || !is_ethernet)
		WITH("pkey_index 5", s->init.pkey_index = 5);
	WITH("port 0", s->init.port_num = 0);
	WITH("port 3", s->init.port_num = 3);
	WITH("port of the path 0", s->rtr.ah_attr.port_num = 0);
	WITH("port of the path 3", s->rtr.ah_attr.port_num = 3);
	WITH("sl 16", s->rtr.ah_attr.sl = 16);
	WITH("hop_limit 0", s->rtr.ah_attr.grh.hop_limit = 0);
	WITH("flow_label 2^20", s->rtr.ah_attr.grh.flow_label = 1 << 20);
	WITH("static_rate 31", s->rtr.ah_attr.static_rate = 31);
	WITH("access 0xffff", s->init.qp_access_flags = 0xffff);
	WITH("access bit 31", s->init.qp_access_flags = 1u << 31);
	WITH("state 0x101", s->init.qp_state = 0x101);
	if (is_ethernet)
		WITH("sgid_index 200", s->rtr.ah_attr.grh.sgid_index = 200);
	WITH("path migration 0, migrated", s->rts.path_mig_state = 0; s->rts_mask |= IBV_QP_PATH_MIG_STATE);
	WITH("a present state", s->rtr.cur_qp_state = IBV_QPS_INIT; s->rtr_mask |= IBV_QP_CUR_STATE);
	WITH("a wrong present state", s->rts.cur_qp_state = IBV_QPS_RTS; s->rts_mask |= IBV_QP_CUR_STATE);
	WITH("no access", s->init_mask &= ~IBV_QP_ACCESS_FLAGS);
	WITH("a queue key", s->init_mask |= IBV_QP_QKEY);
	WITH("mask bit 24", s->init_mask |= 1 << 24);
	WITH("mask bit 26", s->init_mask |= 1 << 26);
	WITH("mask bit 30", s->init_mask |= 1 << 30);
	WITH("mask bit 30 on the way to RTR", s->rtr_mask |= 1 << 30);
	WITH("mask bit 30 and a missing attribute",
	     s->init_mask = (s->init_mask | 1 << 30) & ~IBV_QP_PORT);
}

static void states_of_modify_qp(void)
{
	struct ibv_qp *qp = create(IBV_QPT_RC, NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 });
	need(qp, "a queue pair");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	say(ibv_modify_qp(qp, &attr, 0), "modify_qp mask 0");
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "modify_qp RESET to ERR");
	attr.qp_state = 99;
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "modify_qp to state 99");
	attr.qp_state = IBV_QPS_RTS;
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "modify_qp RESET to RTS");
	struct steps steps = steps_of(qp->qp_num);
	say(ibv_modify_qp(qp, &steps.init, steps.init_mask), "modify_qp RESET to INIT");
	say(ibv_modify_qp(qp, &steps.init, steps.init_mask), "modify_qp INIT to INIT");
	say(ibv_modify_qp(qp, &steps.init, 0), "modify_qp INIT, mask 0");
	memset(&attr, 0xff, sizeof attr);
	attr.qp_state = IBV_QPS_ERR;
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "modify_qp to ERR, values outside the mask");
	attr.cur_qp_state = IBV_QPS_INIT;
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), "modify_qp to ERR, from INIT, in ERR");
	attr.qp_state = IBV_QPS_RESET;
	attr.port_num = PORT;
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), "modify_qp to RESET with a port");
	say(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "modify_qp to RESET, values outside the mask");
	ibv_destroy_qp(qp);
}

static void groups(void)
{
	union ibv_gid group = { .raw = { 0xff, 0x12, [15] = 1 } }, unicast = { .raw = { 0xfe, 0x80, [15] = 1 } };
	struct ibv_qp *rc = create(IBV_QPT_RC, NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 });
	struct ibv_qp *ud = create(IBV_QPT_UD, NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 });
	need(rc, "a queue pair");
	need(ud, "a queue pair of datagrams");
	say(ibv_attach_mcast(rc, &group, 0), "attach_mcast RC");
	say(ibv_attach_mcast(ud, &unicast, 0), "attach_mcast unicast");
	say(ibv_detach_mcast(ud, &group, 0), "detach_mcast not attached");
	say(ibv_detach_mcast(rc, &group, 0), "detach_mcast RC");
	ibv_destroy_qp(rc);
	ibv_destroy_qp(ud);
}

/* A domain that an object lives in. */
#define IN_USE(text, make, end)                                                                    \
	do {                                                                                       \
		struct ibv_pd *pd = ibv_alloc_pd(context);                                         \
		need(pd, "a protection domain");                                                   \
		__auto_type object_ = (make);                                                      \
		if (!object_) {                                                                    \
			/* Linux 5.10's rxe has no windows. */                                     \
			say(errno, "a domain with " text);                                         \
			ibv_dealloc_pd(pd);                                                        \
			break;                                                                     \
		}                                                                                  \
		int error_ = ibv_dealloc_pd(pd);                                                   \
		say(error_, "dealloc_pd with " text);                                              \
		end(object_);                                                                      \
		if (error_)                                                                        \
			say(ibv_dealloc_pd(pd), "dealloc_pd after " text);                         \
	} while (0)

static void domains(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
				       .cap = { 4, 4, 1, 1, 0 } };
	IN_USE("a region", (ibv_reg_mr)(pd, memory, page, 0), ibv_dereg_mr);
	IN_USE("a queue pair", ibv_create_qp(pd, &qp), ibv_destroy_qp);
	IN_USE("a shared queue", ibv_create_srq(pd, &init), ibv_destroy_srq);
	IN_USE("a window", ibv_alloc_mw(pd, IBV_MW_TYPE_1), ibv_dealloc_mw);
	IN_USE("an address handle", ibv_create_ah(pd, &path), ibv_destroy_ah);
	struct ibv_td_init_attr td = { .comp_mask = 1 };
	struct ibv_td *made = ibv_alloc_td(context, &td);
	/* Devices without thread domains reject every mask. */
	printf("alloc_td comp_mask 1: %s\n", made ? "ok" : "refused");
	if (made)
		ibv_dealloc_td(made);
}

int main(void)
{
	open_device();
	find_path();
	completion_queues();
	queue_pairs();
	shared_queues();
	extended_connections();
	address_handles();
	queries();
	numbers_of_modify_qp();
	states_of_modify_qp();
	groups();
	domains();
	/* This comes last because it unmaps a page. */
	regions();
	ibv_destroy_srq(srq);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	munmap(memory, page);
	ibv_close_device(context);
	return 0;
}

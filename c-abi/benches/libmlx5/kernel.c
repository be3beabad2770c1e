/* One ConnectX device in plain memory, with the kernel calls that libibverbs and libmlx5 need. The
 * functions below replace libc's in this process. The device file is /dev/zero: mapping it yields
 * memory, and its number is the one in SYSFS_PATH (1:5). It has no ioctl, so libibverbs sends its
 * commands by write(). */

#include "kernel.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char PATH[] = "/dev/infiniband/uverbs0", FILE_OF_MEMORY[] = "/dev/zero";

/* A register used by only one queue pair, as current kernels assign to the first queue pairs of a
 * process. */
enum { OWN_REGISTER = 24, REGISTERS = 16 };
enum { QPN = 0x11, ENTRY = 64, RDMA_WRITE = 8 };

static int device = -1;

static struct {
	uint8_t *entries;
	uint32_t count, size, written, user_index;
} cq;

void complete(unsigned count) {
	for (; count > 0; count--, cq.written++) {
		uint32_t slot = cq.written % cq.count;
		/* A longer entry has the fields in its last 64 bytes. */
		uint8_t *entry = cq.entries + (slot + 1) * cq.size - ENTRY;
		uint32_t user_index = htobe32(cq.user_index), length = htobe32(8), qpn = htobe32(RDMA_WRITE << 24 | QPN);
		uint16_t counter = htobe16(cq.written);
		memset(entry, 0, ENTRY - 1);
		memcpy(entry + 32, &user_index, sizeof(user_index));
		memcpy(entry + 44, &length, sizeof(length));
		memcpy(entry + 56, &qpn, sizeof(qpn));
		memcpy(entry + 60, &counter, sizeof(counter));
		/* A completion of a request has operation 0; the owner changes with each round. */
		entry[ENTRY - 1] = cq.written / cq.count % 2;
	}
}

/* A response: the kernel's struct, then the driver's, truncated to the caller's buffer. */
static void respond(const struct ib_uverbs_cmd_hdr *hdr, const void *core, size_t core_len, const void *driver,
		    size_t driver_len) {
	uint64_t address;
	memcpy(&address, hdr + 1, sizeof(address));
	char *response = (char *)(uintptr_t)address;
	size_t room = hdr->out_words * 4 - core_len;
	memcpy(response, core, core_len);
	memset(response + core_len, 0, room);
	memcpy(response + core_len, driver, driver_len < room ? driver_len : room);
}

static int get_context(const struct ib_uverbs_cmd_hdr *hdr) {
	struct ib_uverbs_get_context_resp core = {.async_fd = dup(device), .num_comp_vectors = 1};
	struct mlx5_ib_alloc_ucontext_resp driver = {
		.qp_tab_size = 1 << 18,
		.bf_reg_size = 512,
		.tot_bfregs = REGISTERS,
		.cache_line_size = 64,
		.max_sq_desc_sz = 1024,
		.max_rq_desc_sz = 512,
		.max_send_wqebb = 1 << 15,
		.max_recv_wr = 1 << 15,
		.max_srq_recv_wr = 1 << 15,
		.num_ports = 1,
		.response_length = sizeof(driver),
		.cqe_version = 1,
		.log_uar_size = 12,
		.num_uars_per_page = 1,
	};
	respond(hdr, &core, sizeof(core), &driver, sizeof(driver));
	return 0;
}

static int create_cq(const struct ib_uverbs_cmd_hdr *hdr) {
	const struct ib_uverbs_create_cq *request = (const void *)(hdr + 1);
	const struct mlx5_ib_create_cq *queue = (const void *)request->driver_data;
	cq.entries = (uint8_t *)(uintptr_t)queue->buf_addr;
	cq.count = request->cqe + 1;
	cq.size = queue->cqe_size;
	struct ib_uverbs_create_cq_resp core = {.cq_handle = 3, .cqe = request->cqe};
	struct mlx5_ib_create_cq_resp driver = {.cqn = 5};
	respond(hdr, &core, sizeof(core), &driver, sizeof(driver));
	return 0;
}

static int create_qp(const struct ib_uverbs_cmd_hdr *hdr) {
	const struct ib_uverbs_create_qp *request = (const void *)(hdr + 1);
	const struct mlx5_ib_create_qp *queues = (const void *)request->driver_data;
	cq.user_index = queues->uidx;
	struct ib_uverbs_create_qp_resp core = {
		.qp_handle = 4,
		.qpn = QPN,
		.max_send_wr = request->max_send_wr,
		.max_recv_wr = request->max_recv_wr,
		.max_send_sge = request->max_send_sge,
		.max_recv_sge = request->max_recv_sge,
		.max_inline_data = request->max_inline_data,
	};
	struct mlx5_ib_create_qp_resp driver = {.bfreg_index = OWN_REGISTER};
	respond(hdr, &core, sizeof(core), &driver, sizeof(driver));
	return 0;
}

/* Returns 0 or an errno. */
static int execute(const struct ib_uverbs_cmd_hdr *hdr) {
	struct ib_uverbs_query_device_resp properties = {.phys_port_cnt = 1};
	struct ib_uverbs_query_port_resp port = {.state = 4, .max_mtu = 5, .active_mtu = 5, .lid = 1, .link_layer = 1};
	struct ib_uverbs_alloc_pd_resp pd = {.pd_handle = 2};
	struct mlx5_ib_alloc_pd_resp pdn = {.pdn = 2};
	switch (hdr->command) {
	case IB_USER_VERBS_CMD_GET_CONTEXT:
		return get_context(hdr);
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
		respond(hdr, &properties, sizeof(properties), NULL, 0);
		return 0;
	case IB_USER_VERBS_CMD_QUERY_PORT:
		respond(hdr, &port, sizeof(port), NULL, 0);
		return 0;
	case IB_USER_VERBS_CMD_ALLOC_PD:
		respond(hdr, &pd, sizeof(pd), &pdn, sizeof(pdn));
		return 0;
	case IB_USER_VERBS_CMD_CREATE_CQ:
		return create_cq(hdr);
	case IB_USER_VERBS_CMD_CREATE_QP:
		return create_qp(hdr);
	case IB_USER_VERBS_CMD_MODIFY_QP:
		return 0;
	default:
		fprintf(stderr, "kernel: command %#x is rejected\n", hdr->command);
		return EOPNOTSUPP;
	}
}

ssize_t write(int fd, const void *buf, size_t len) {
	if (fd != device || device < 0)
		return syscall(SYS_write, fd, buf, len);
	errno = execute(buf);
	return errno == 0 ? (ssize_t)len : -1;
}

int open(const char *path, int flags, ...) {
	if (strcmp(path, PATH) == 0)
		return device = openat(AT_FDCWD, FILE_OF_MEMORY, flags);
	va_list more;
	va_start(more, flags);
	int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
	va_end(more);
	return openat(AT_FDCWD, path, flags, mode);
}

int stat(const char *path, struct stat *found) {
	return fstatat(AT_FDCWD, strcmp(path, PATH) == 0 ? FILE_OF_MEMORY : path, found, 0);
}

/* Every device page is separate memory. */
void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset) {
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, fd == device && device >= 0 ? 0 : offset);
}

/* Without RDMA netlink, libibverbs searches for devices in SYSFS_PATH. */
int socket(int domain, int type, int protocol) {
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int stat64(const char *path, struct stat64 *found) __attribute__((alias("stat")));
void *mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset) __attribute__((alias("mmap")));

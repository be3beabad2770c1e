/* Every operation of a reliable connection, through ibv_post_send and through ibv_wr_...; data is
 * compared, and completions are polled into arrays. As on hardware, failures are reported by
 * completions. */
#include "test.h"

enum { SIZE = 16384, HALF = SIZE / 2 };

/* Whether requests are posted by ibv_wr_... */
static bool is_new;

static struct side one, other;

static void fill(struct side *side, uint8_t start)
{
	for (size_t i = 0; i < SIZE; i++)
		side->memory[i] = (uint8_t)(start + i * 11);
}

struct request {
	enum ibv_wr_opcode opcode;
	uint64_t wr_id, remote_addr, compare_add, swap;
	uint32_t rkey, imm;
	unsigned int flags;
	struct ibv_sge sge;
};

static int post_new(struct ibv_qp *qp, const struct request *request)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex != NULL);
	ibv_wr_start(ex);
	ex->wr_id = request->wr_id;
	ex->wr_flags = request->flags & ~IBV_SEND_INLINE;
	switch (request->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(ex);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(ex, htobe32(request->imm));
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(ex, request->rkey, request->remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(ex, request->rkey, request->remote_addr, htobe32(request->imm));
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(ex, request->rkey, request->remote_addr);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(ex, request->rkey, request->remote_addr, request->compare_add);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(ex, request->rkey, request->remote_addr, request->compare_add,
				      request->swap);
		break;
	default:
		CHECK(false);
	}
	if (request->flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data(ex, (void *)(uintptr_t)request->sge.addr, request->sge.length);
	else
		ibv_wr_set_sge(ex, request->sge.lkey, request->sge.addr, request->sge.length);
	return ibv_wr_complete(ex);
}

static int post(struct ibv_qp *qp, const struct request *request)
{
	if (is_new)
		return post_new(qp, request);
	struct ibv_sge sge = request->sge;
	struct ibv_send_wr wr = {
		.wr_id = request->wr_id, .sg_list = &sge, .num_sge = 1, .opcode = request->opcode,
		.send_flags = request->flags, .imm_data = htobe32(request->imm),
	}, *bad;
	if (request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = request->remote_addr;
		wr.wr.atomic.rkey = request->rkey;
		wr.wr.atomic.compare_add = request->compare_add;
		wr.wr.atomic.swap = request->swap;
	} else {
		wr.wr.rdma.remote_addr = request->remote_addr;
		wr.wr.rdma.rkey = request->rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

static struct request request(enum ibv_wr_opcode opcode, size_t length)
{
	struct request request = {
		.opcode = opcode,
		.wr_id = 0xfedcba9876543210 + opcode,
		.flags = IBV_SEND_SIGNALED,
		.sge = sge_of(&one, 0, length),
		.remote_addr = (uintptr_t)other.memory + HALF,
		.rkey = other.mr->rkey,
	};
	return request;
}

static void done(const struct request *request, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = success_of(one.cq);
	CHECK(wc.wr_id == request->wr_id);
	IS(wc.opcode, opcode);
	IS(wc.qp_num, one.qp->qp_num);
}

static void sends(void)
{
	static const size_t lengths[] = { 0, 1, 63, 64, 1023, 1024, 1025, 5000, HALF };
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		size_t length = lengths[i];
		fill(&one, (uint8_t)i);
		memset(other.memory, 0xee, SIZE);
		post_recv(&other, i, 0, HALF);
		struct request send = request(i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, length);
		send.imm = 0xa1b2c3d4;
		if (length <= 64)
			send.flags |= IBV_SEND_INLINE;
		IS(post(one.qp, &send), 0);
		done(&send, IBV_WC_SEND);
		struct ibv_wc wc = success_of(other.cq);
		CHECK(wc.wr_id == i);
		IS(wc.opcode, IBV_WC_RECV);
		IS(wc.byte_len, length);
		IS(!!(wc.wc_flags & IBV_WC_WITH_IMM), i % 2);
		if (i % 2)
			IS(be32toh(wc.imm_data), 0xa1b2c3d4);
		CHECK(!memcmp(one.memory, other.memory, length));
		CHECK(other.memory[length] == 0xee);
	}
}

static void remote_access(void)
{
	fill(&one, 1);
	fill(&other, 99);
	struct request write = request(IBV_WR_RDMA_WRITE, 3000);
	IS(post(one.qp, &write), 0);
	done(&write, IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(one.memory, other.memory + HALF, 3000));

	post_recv(&other, 5, 0, 16);
	write = request(IBV_WR_RDMA_WRITE_WITH_IMM, 100);
	write.imm = 7;
	IS(post(one.qp, &write), 0);
	done(&write, IBV_WC_RDMA_WRITE);
	struct ibv_wc wc = success_of(other.cq);
	IS(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	IS(wc.byte_len, 100);
	IS(be32toh(wc.imm_data), 7);

	fill(&other, 42);
	struct request read = request(IBV_WR_RDMA_READ, 4000);
	IS(post(one.qp, &read), 0);
	done(&read, IBV_WC_RDMA_READ);
	CHECK(!memcmp(one.memory, other.memory + HALF, 4000));

	uint64_t *local = (uint64_t *)one.memory, *remote = (uint64_t *)(other.memory + HALF);
	*remote = 1000;
	struct request atomic = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
	atomic.compare_add = 5;
	IS(post(one.qp, &atomic), 0);
	done(&atomic, IBV_WC_FETCH_ADD);
	IS(*local, 1000);
	IS(*remote, 1005);
	atomic = request(IBV_WR_ATOMIC_CMP_AND_SWP, 8);
	atomic.compare_add = 1005;
	atomic.swap = 77;
	IS(post(one.qp, &atomic), 0);
	done(&atomic, IBV_WC_COMP_SWAP);
	IS(*local, 1005);
	IS(*remote, 77);
	IS(post(one.qp, &atomic), 0);
	done(&atomic, IBV_WC_COMP_SWAP);
	IS(*local, 77);
	IS(*remote, 77);
}

/* A list is posted up to the first bad request. */
static void lists(void)
{
	if (is_new)
		return;
	struct ibv_sge sge = sge_of(&one, 0, 8);
	struct ibv_send_wr wrs[4], *bad = NULL;
	for (int i = 0; i < 4; i++) {
		post_recv(&other, (uint64_t)i, 0, 8);
		wrs[i] = (struct ibv_send_wr){ .wr_id = (uint64_t)i, .next = i < 3 ? &wrs[i + 1] : NULL,
					       .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					       .send_flags = IBV_SEND_SIGNALED };
	}
	wrs[2].num_sge = 100;
	int result = ibv_post_send(one.qp, &wrs[0], &bad);
	IS_ONE_OF(result, EINVAL, ENOMEM);
	CHECK(bad == &wrs[2]);
	wrs[2].num_sge = 1;
	IS(ibv_post_send(one.qp, &wrs[2], &bad), 0);
	for (int i = 0; i < 4; i++) {
		CHECK(success_of(one.cq).wr_id == (uint64_t)i);
		CHECK(success_of(other.cq).wr_id == (uint64_t)i);
	}
	/* The same for receives. */
	struct ibv_sge recv_sge = sge_of(&other, 0, 8);
	struct ibv_recv_wr recvs[3], *bad_recv = NULL;
	for (int i = 0; i < 3; i++)
		recvs[i] = (struct ibv_recv_wr){ .wr_id = (uint64_t)i, .next = i < 2 ? &recvs[i + 1] : NULL,
						 .sg_list = &recv_sge, .num_sge = 1 };
	recvs[1].num_sge = 100;
	result = ibv_post_recv(other.qp, &recvs[0], &bad_recv);
	IS_ONE_OF(result, EINVAL, ENOMEM);
	CHECK(bad_recv == &recvs[1]);
	wrs[0].next = NULL;
	IS(ibv_post_send(one.qp, &wrs[0], &bad), 0);
	CHECK(success_of(other.cq).wr_id == 0);
	success_of(one.cq);
}

/* A full queue returns ENOMEM, and accepts requests again after completions were polled. */
static void full_queues(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	IS(ibv_query_qp(one.qp, &attr, IBV_QP_CAP, &init), 0);
	CHECK(init.cap.max_send_wr >= 32 && init.cap.max_send_wr == attr.cap.max_send_wr);
	/* No send ends while the peer has no receive: some devices free a request once it is done, before
	 * its completion is polled. */
	struct request send = request(IBV_WR_SEND, 8);
	uint32_t posted = 0;
	int result = 0;
	while (posted <= init.cap.max_send_wr && (result = post(one.qp, &send)) == 0)
		posted++;
	IS(result, ENOMEM);
	CHECK(posted >= 32);
	for (uint32_t polled = 0; polled < posted; polled++) {
		post_recv(&other, polled, 0, 8);
		done(&send, IBV_WC_SEND);
		CHECK(success_of(other.cq).wr_id == polled);
	}
	post_recv(&other, 0, 0, 8);
	IS(post(one.qp, &send), 0);
	done(&send, IBV_WC_SEND);
	success_of(other.cq);
}

static void reconnect(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	IS(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE), 0);
	IS(ibv_modify_qp(other.qp, &attr, IBV_QP_STATE), 0);
	IS(one.qp->state, IBV_QPS_RESET);
	struct ibv_wc wc;
	while (ibv_poll_cq(one.cq, 1, &wc) > 0 || ibv_poll_cq(other.cq, 1, &wc) > 0)
		;
	connect_pair(one.qp, other.qp);
	IS(one.qp->state, IBV_QPS_RTS);
}

/* Posting succeeds, and the completion reports the error; the queue pair is in the error state. */
static void fails_with(struct request request, enum ibv_wc_status status)
{
	IS(post(one.qp, &request), 0);
	struct ibv_wc wc = completion_of(one.cq);
	if (wc.status != status) {
		fprintf(stderr, "rc.c: %s rather than %s (new %d)\n", ibv_wc_status_str(wc.status),
			ibv_wc_status_str(status), is_new);
		exit(1);
	}
	CHECK(wc.wr_id == request.wr_id);
	struct request flushed = request;
	IS(post(one.qp, &flushed), 0);
	IS(completion_of(one.cq).status, IBV_WC_WR_FLUSH_ERR);
	reconnect();
}

static void failures(void)
{
	struct request bad = request(IBV_WR_RDMA_WRITE, 8);
	bad.rkey ^= 0x5a00;
	fails_with(bad, IBV_WC_REM_ACCESS_ERR);
	bad = request(IBV_WR_RDMA_READ, 8);
	bad.remote_addr = (uintptr_t)other.memory + SIZE;
	fails_with(bad, IBV_WC_REM_ACCESS_ERR);
	bad = request(IBV_WR_RDMA_WRITE, 8);
	bad.sge.lkey ^= 0x5a00;
	fails_with(bad, IBV_WC_LOC_PROT_ERR);
	bad = request(IBV_WR_RDMA_WRITE, 8);
	bad.sge.addr += SIZE;
	fails_with(bad, IBV_WC_LOC_PROT_ERR);
	/* librxe rejects this one, libmlx5 does not. */
	bad = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
	bad.remote_addr += 4;
	if (post(one.qp, &bad) == 0) {
		IS(completion_of(one.cq).status, IBV_WC_REM_INV_REQ_ERR);
		reconnect();
	}

	/* The receiver's buffer is too short. */
	post_recv(&other, 1, 0, 16);
	bad = request(IBV_WR_SEND, 64);
	IS(post(one.qp, &bad), 0);
	IS(completion_of(one.cq).status, IBV_WC_REM_INV_REQ_ERR);
	IS(completion_of(other.cq).status, IBV_WC_LOC_LEN_ERR);
	reconnect();
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device();
	for (int i = 0; i < 2 * rounds(argc, argv); i++) {
		is_new = i % 2;
		one = make_side(context, is_new ? 0 : IBV_QPT_RC, SIZE);
		other = make_side(context, IBV_QPT_RC, SIZE);
		if (is_new)
			one.qp = create_qp_ex(one.pd, one.cq, IBV_QPT_RC, WR_OPS);
		CHECK(one.qp != NULL);
		CHECK(is_new || ibv_qp_to_qp_ex(one.qp) == NULL);
		connect_pair(one.qp, other.qp);
		sends();
		remote_access();
		lists();
		full_queues();
		failures();
		destroy_side(&one);
		destroy_side(&other);
	}
	IS(ibv_close_device(context), 0);
	return 0;
}

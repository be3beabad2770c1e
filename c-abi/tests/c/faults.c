/* Faulty requests that C's providers leave to the device: the call posts the request, and its
 * completion reports the fault, after the completions of earlier requests. */
#include "test.h"

static struct ibv_context *context;

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	IS(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

/* A pair of queue pairs of one type; the second one has receives posted. */
static void make_pair(enum ibv_qp_type type, struct side *one, struct side *other)
{
	*one = make_side(context, type, 4096);
	*other = make_side(context, type, 4096);
	connect_pair(one->qp, other->qp);
	for (uint64_t i = 0; i < 4; i++)
		post_recv(other, 100 + i, 1024, 1024);
}

static void destroy_pair(struct side *one, struct side *other)
{
	destroy_side(one);
	destroy_side(other);
}

/* Posts a valid request, the faulty one, and one behind it; returns the status of the faulty one.
 * Nothing is signaled: a fault is reported nevertheless. */
static enum ibv_wc_status status_of(struct side *side, const struct ibv_send_wr *good, struct ibv_send_wr *faulty)
{
	struct ibv_send_wr first = *good, last = *good, *bad;
	first.wr_id = 1;
	first.send_flags = IBV_SEND_SIGNALED;
	last.wr_id = 3;
	faulty->wr_id = 2;
	faulty->next = NULL;
	IS(ibv_post_send(side->qp, &first, &bad), 0);
	IS(ibv_post_send(side->qp, faulty, &bad), 0);
	IS(success_of(side->cq).wr_id, 1);
	struct ibv_wc wc = completion_of(side->cq);
	IS(wc.wr_id, 2);
	IS(state_of(side->qp), side->qp->qp_type == IBV_QPT_RC ? IBV_QPS_ERR : IBV_QPS_SQE);
	IS(ibv_post_send(side->qp, &last, &bad), 0);
	IS(completion_of(side->cq).status, IBV_WC_WR_FLUSH_ERR);
	return wc.status;
}

static void a_message_that_is_too_long_fails(void)
{
	struct side one, other;
	make_pair(IBV_QPT_RC, &one, &other);
	struct ibv_sge sge = sge_of(&one, 0, 64), list[2];
	for (int i = 0; i < 2; i++)
		list[i] = (struct ibv_sge){ .addr = sge.addr, .length = 3u << 29, .lkey = sge.lkey };
	struct ibv_send_wr good = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND },
			   faulty = { .sg_list = list, .num_sge = 2, .opcode = IBV_WR_RDMA_WRITE };
	IS(status_of(&one, &good, &faulty), IBV_WC_LOC_LEN_ERR);
	destroy_pair(&one, &other);
}

static void a_datagram_that_is_too_long_fails(void)
{
	struct side side = make_side(context, IBV_QPT_UD, 1 << 17);
	to_init(side.qp);
	connect_qp(side.qp, 0);
	struct ibv_ah_attr path = own_path(context);
	struct ibv_ah *ah = ibv_create_ah(side.pd, &path);
	CHECK(ah != NULL);
	struct ibv_sge small = sge_of(&side, 0, 64), large = sge_of(&side, 0, 1 << 17);
	struct ibv_send_wr good = { .sg_list = &small, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .wr.ud = { .ah = ah, .remote_qpn = side.qp->qp_num, .remote_qkey = 0x11111111 } };
	struct ibv_send_wr faulty = good;
	faulty.sg_list = &large;
	IS(status_of(&side, &good, &faulty), IBV_WC_LOC_LEN_ERR);
	IS(ibv_destroy_ah(ah), 0);
	destroy_side(&side);
}

static void an_operation_that_the_type_lacks_fails(void)
{
	static const enum ibv_wr_opcode lacking[] = { IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
						      IBV_WR_SEND_WITH_INV };
	for (int i = 0; i < 3; i++) {
		struct side one, other;
		make_pair(IBV_QPT_UC, &one, &other);
		struct ibv_sge sge = sge_of(&one, 0, 8);
		struct ibv_send_wr good = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, faulty = good, *bad;
		faulty.opcode = lacking[i];
		if (lacking[i] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			faulty.wr.atomic.remote_addr = (uintptr_t)other.memory;
			faulty.wr.atomic.rkey = other.mr->rkey;
		} else {
			faulty.wr.rdma.remote_addr = (uintptr_t)other.memory;
			faulty.wr.rdma.rkey = other.mr->rkey;
		}
		/* The call still reports other faults. */
		struct ibv_sge three[3] = { sge, sge, sge };
		struct ibv_send_wr worse = faulty;
		worse.sg_list = three;
		worse.num_sge = 3;
		IS(ibv_post_send(one.qp, &worse, &bad), EINVAL);
		CHECK(bad == &worse);
		IS(status_of(&one, &good, &faulty), IBV_WC_LOC_QP_OP_ERR);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
		IS(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE), 0);
		IS(ibv_post_send(one.qp, &faulty, &bad), EINVAL);
		destroy_pair(&one, &other);
	}
}

/* The device writes the first 8 bytes of a longer list. */
static void an_atomic_writes_8_bytes_of_a_longer_list(void)
{
	struct side one, other;
	make_pair(IBV_QPT_RC, &one, &other);
	for (int elements = 1; elements <= 2; elements++) {
		uint64_t before = 1000 + (uint64_t)elements;
		memset(one.memory, 0xee, 64);
		memcpy(other.memory, &before, 8);
		struct ibv_sge list[2] = { sge_of(&one, 0, elements == 1 ? 24 : 6), sge_of(&one, 32, 16) };
		struct ibv_send_wr wr = { .wr_id = 9, .sg_list = list, .num_sge = elements,
					  .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
					  .wr.atomic = { .remote_addr = (uintptr_t)other.memory,
							 .rkey = other.mr->rkey, .compare_add = 5 } }, *bad;
		IS(ibv_post_send(one.qp, &wr, &bad), 0);
		struct ibv_wc wc = success_of(one.cq);
		CHECK(wc.wr_id == 9 && wc.opcode == IBV_WC_FETCH_ADD);
		uint8_t found[8];
		memcpy(found, one.memory, elements == 1 ? 8 : 6);
		if (elements == 2)
			memcpy(found + 6, one.memory + 32, 2);
		CHECK(!memcmp(found, &before, 8));
		CHECK(one.memory[elements == 1 ? 8 : 6] == 0xee && one.memory[34] == 0xee);
		before += 5;
		CHECK(!memcmp(other.memory, &before, 8));
		list[0].length = 4;
		wr.num_sge = 1;
		IS(ibv_post_send(one.qp, &wr, &bad), EINVAL);
	}
	destroy_pair(&one, &other);
}

int main(int argc, char **argv)
{
	context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_message_that_is_too_long_fails();
		a_datagram_that_is_too_long_fails();
		an_operation_that_the_type_lacks_fails();
		an_atomic_writes_8_bytes_of_a_longer_list();
	}
	IS(ibv_close_device(context), 0);
	return 0;
}

/* XRC: domains of a file shared by several openers, receive queues by number, opened queue
 * pairs. */
#include <fcntl.h>

#include "test.h"

static struct ibv_context *context;

static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd,
					   .oflags = oflags };
	return ibv_open_xrcd(context, &attr);
}

static void a_message_arrives_on_the_queue_of_its_number(struct ibv_xrcd *xrcd)
{
	struct side one = make_side(context, IBV_QPT_XRC_SEND, 4096), other = make_side(context, 0, 4096);
	struct ibv_srq *srqs[2];
	uint32_t numbers[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
						     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
								  IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
						     .pd = other.pd, .xrcd = xrcd, .cq = other.cq };
		srqs[i] = ibv_create_srq_ex(context, &init);
		CHECK(srqs[i] != NULL);
		IS(ibv_get_srq_num(srqs[i], &numbers[i]), 0);
	}
	CHECK(numbers[0] != numbers[1]);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target = ibv_create_qp_ex(context, &init);
	CHECK(target != NULL);
	connect_pair(one.qp, target);

	/* Another opener may modify it. */
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
					 .qp_num = target->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *opened = ibv_open_qp(context, &open);
	CHECK(opened != NULL && opened != target && opened->qp_num == target->qp_num);
	open.qp_num ^= 1;
	CHECK(ibv_open_qp(context, &open) == NULL);
	/* The queues keep the handle they were created with, even if the domain gets another
	 * one. */
	IS(ibv_close_xrcd(xrcd), EBUSY);

	for (int i = 0; i < 2; i++) {
		struct ibv_sge to = sge_of(&other, 0, 100), from = sge_of(&one, 0, 100);
		struct ibv_recv_wr recv = { .wr_id = 50 + (uint64_t)i, .sg_list = &to, .num_sge = 1 }, *bad_recv;
		IS(ibv_post_srq_recv(srqs[i], &recv, &bad_recv), 0);
		struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = numbers[i] }, *bad;
		memset(one.memory, 7 + i, 100);
		IS(ibv_post_send(one.qp, &wr, &bad), 0);
		success_of(one.cq);
		struct ibv_wc wc = success_of(other.cq);
		CHECK(wc.wr_id == 50 + (uint64_t)i);
		IS(wc.qp_num, target->qp_num);
		IS(other.memory[99], 7 + i);
	}
	IS(ibv_destroy_qp(target), 0);
	IS(ibv_destroy_qp(opened), 0);
	IS(ibv_destroy_srq(srqs[0]), 0);
	IS(ibv_destroy_srq(srqs[1]), 0);
	destroy_side(&one);
	destroy_side(&other);
}

int main(int argc, char **argv)
{
	context = open_device();
	for (int i = 0; i < rounds(argc, argv); i++) {
		struct ibv_xrcd *alone = open_domain(-1, O_CREAT);
		CHECK(alone != NULL);
		a_message_arrives_on_the_queue_of_its_number(alone);
		IS(ibv_close_xrcd(alone), 0);

		char path[] = "/tmp/verbs-c-xrcd-XXXXXX";
		int fd = mkstemp(path);
		CHECK(fd >= 0);
		CHECK(open_domain(fd, 0) == NULL);
		struct ibv_xrcd *first = open_domain(fd, O_CREAT), *second = open_domain(fd, O_CREAT);
		CHECK(first != NULL && second != NULL);
		CHECK(open_domain(fd, O_CREAT | O_EXCL) == NULL);
		a_message_arrives_on_the_queue_of_its_number(first);
		IS(ibv_close_xrcd(first), 0);
		a_message_arrives_on_the_queue_of_its_number(second);
		IS(ibv_close_xrcd(second), 0);
		close(fd);
		unlink(path);
	}
	IS(ibv_close_device(context), 0);
	return 0;
}

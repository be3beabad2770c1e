/* Datagrams: the GRH before the data, address handles made from a completion, immediate data. */
#include <arpa/inet.h>

#include "test.h"

enum { GRH = 40, QKEY = 0x11111111 };

static struct side one, other;

static void send_to(struct side *from, struct ibv_ah *ah, uint32_t qp_num, uint32_t qkey, size_t length,
		    const uint32_t *imm)
{
	struct ibv_sge sge = sge_of(from, 1024, length);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (imm) {
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		wr.imm_data = htobe32(*imm);
	}
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp_num;
	wr.wr.ud.remote_qkey = qkey;
	IS(ibv_post_send(from->qp, &wr, &bad), 0);
	IS(success_of(from->cq).opcode, IBV_WC_SEND);
}

static void the_reply_goes_to_the_sender(struct ibv_context *context)
{
	struct ibv_ah_attr path = own_path(context);
	path.grh.traffic_class = 0x20;
	struct ibv_ah *ah = ibv_create_ah(one.pd, &path);
	CHECK(ah != NULL);
	memset(other.memory, 0xee, other.size);
	for (int i = 0; i < 100; i++)
		one.memory[1024 + i] = (uint8_t)i;
	post_recv(&other, 9, 0, 512);
	uint32_t imm = 0x01020304;
	send_to(&one, ah, other.qp->qp_num, QKEY, 100, &imm);

	struct ibv_wc wc = success_of(other.cq);
	CHECK(wc.wr_id == 9);
	IS(wc.byte_len, 100 + GRH);
	IS(wc.src_qp, one.qp->qp_num);
	CHECK(wc.wc_flags & IBV_WC_GRH);
	CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
	IS(be32toh(wc.imm_data), imm);
	CHECK(!memcmp(other.memory + GRH, one.memory + 1024, 100));
	CHECK(other.memory[GRH + 100] == 0xee);

	/* Address 127.x has an IPv4 header in the last 20 bytes. */
	const uint8_t *header = other.memory + 20;
	IS(header[0], 0x45);
	IS(header[1], 0x20);
	struct ibv_ah_attr back;
	memset(&back, 0, sizeof back);
	IS(ibv_init_ah_from_wc(context, PORT, &wc, (struct ibv_grh *)other.memory, &back), 0);
	IS(back.is_global, 1);
	IS(back.port_num, PORT);
	IS(back.grh.traffic_class, 0x20);
	IS(back.grh.sgid_index, gid_index());
	CHECK(!memcmp(&back.grh.dgid, &path.grh.dgid, 16));

	struct ibv_ah *reply = ibv_create_ah_from_wc(other.pd, &wc, (struct ibv_grh *)other.memory, PORT);
	CHECK(reply != NULL);
	post_recv(&one, 10, 0, 512);
	send_to(&other, reply, wc.src_qp, QKEY, 1, NULL);
	wc = success_of(one.cq);
	CHECK(wc.wr_id == 10 && !(wc.wc_flags & IBV_WC_WITH_IMM));
	IS(wc.byte_len, 1 + GRH);
	IS(wc.src_qp, other.qp->qp_num);
	IS(ibv_destroy_ah(reply), 0);
	IS(ibv_destroy_ah(ah), 0);
}

static void an_address_handle_can_end_before_its_request(struct ibv_context *context)
{
	struct ibv_ah_attr path = own_path(context);
	for (uint64_t i = 0; i < 16; i++) {
		struct ibv_ah *ah = ibv_create_ah(one.pd, &path);
		CHECK(ah != NULL);
		post_recv(&other, i, 0, 512);
		send_to(&one, ah, other.qp->qp_num, QKEY, 8, NULL);
		IS(ibv_destroy_ah(ah), 0);
		CHECK(success_of(other.cq).wr_id == i);
	}
}

static void the_wrong_key_receives_nothing(struct ibv_context *context)
{
	struct ibv_ah_attr path = own_path(context);
	struct ibv_ah *ah = ibv_create_ah(one.pd, &path);
	CHECK(ah != NULL);
	post_recv(&other, 1, 0, 512);
	send_to(&one, ah, other.qp->qp_num, QKEY + 1, 8, NULL);
	send_to(&one, ah, other.qp->qp_num, QKEY, 9, NULL);
	IS(success_of(other.cq).byte_len, 9 + GRH);
	IS(ibv_destroy_ah(ah), 0);
}

static void bad_addresses_are_refused(struct ibv_context *context)
{
	struct ibv_ah_attr path = own_path(context);
	path.port_num = 2;
	REFUSED(ibv_create_ah(one.pd, &path), EINVAL);
	path = own_path(context);
	path.grh.sgid_index = 200;
	REFUSED(ibv_create_ah(one.pd, &path), EINVAL);
	path = own_path(context);
	path.is_global = 0;
	REFUSED(ibv_create_ah(one.pd, &path), EINVAL);
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh;
	memset(&grh, 0xff, sizeof grh);
	struct ibv_ah_attr attr;
	errno = 0;
	CHECK(ibv_init_ah_from_wc(context, PORT, &wc, &grh, &attr) != 0);
	CHECK(ibv_create_ah_from_wc(one.pd, &wc, &grh, PORT) == NULL);

	struct ibv_sge sge = sge_of(&one, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	IS(ibv_post_send(one.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
}

static void the_new_functions_send_datagrams(struct ibv_context *context)
{
	struct side from = make_side(context, 0, 4096);
	from.qp = create_qp_ex(from.pd, from.cq, IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	CHECK(from.qp != NULL);
	to_init(from.qp);
	connect_qp(from.qp, 0);
	struct ibv_ah_attr path = own_path(context);
	struct ibv_ah *ah = ibv_create_ah(from.pd, &path);
	CHECK(ah != NULL);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(from.qp);
	struct ibv_sge sge = sge_of(&from, 0, 50);
	/* The address is set before the memory, and after it; inline data too. */
	for (uint64_t i = 0; i < 4; i++) {
		post_recv(&other, i, 0, 512);
		memset(from.memory, (int)i + 1, 50);
		ibv_wr_start(ex);
		ex->wr_id = i;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send_imm(ex, htobe32((uint32_t)i));
		if (i % 2)
			ibv_wr_set_ud_addr(ex, ah, other.qp->qp_num, QKEY);
		if (i / 2)
			ibv_wr_set_inline_data(ex, from.memory, 50);
		else
			ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
		if (i % 2 == 0)
			ibv_wr_set_ud_addr(ex, ah, other.qp->qp_num, QKEY);
		IS(ibv_wr_complete(ex), 0);
		CHECK(success_of(from.cq).wr_id == i);
		struct ibv_wc wc = success_of(other.cq);
		IS(wc.byte_len, 50 + GRH);
		IS(be32toh(wc.imm_data), i);
		IS(other.memory[GRH + 49], i + 1);
	}
	/* Without an address, nothing is sent. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
	IS(ibv_wr_complete(ex), EINVAL);
	IS(ibv_destroy_ah(ah), 0);
	destroy_side(&from);
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device();
	one = make_side(context, IBV_QPT_UD, 4096);
	other = make_side(context, IBV_QPT_UD, 4096);
	to_init(one.qp);
	to_init(other.qp);
	connect_qp(one.qp, 0);
	connect_qp(other.qp, 0);
	for (int i = 0; i < rounds(argc, argv); i++) {
		the_reply_goes_to_the_sender(context);
		an_address_handle_can_end_before_its_request(context);
		the_wrong_key_receives_nothing(context);
		bad_addresses_are_refused(context);
		the_new_functions_send_datagrams(context);
	}
	destroy_side(&one);
	destroy_side(&other);
	IS(ibv_close_device(context), 0);
	return 0;
}

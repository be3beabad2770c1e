/* Connections by address: ids with and without a channel, datagram services, groups, queue pairs
 * created by the program. */
#include "connections.h"

static void the_ids_show_their_route_and_share_a_context(void)
{
	struct connection made = connect_both();
	struct rdma_cm_id *ids[] = { made.client, made.server };
	CHECK(made.client->verbs && made.client->verbs == made.server->verbs);
	CHECK(made.client->pd == made.server->pd && made.listener->verbs == made.client->verbs);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = ids[i];
		IS(id->port_num, PORT);
		IS(id->ps, RDMA_PS_TCP);
		IS(id->qp_type, IBV_QPT_RC);
		IS(id->route.num_paths, 1);
		CHECK(id->route.path_rec->mtu >= IBV_MTU_256 && id->route.path_rec->hop_limit > 0);
		IS(id->route.addr.src_sin.sin_addr.s_addr, own_address(0).sin_addr.s_addr);
		IS(id->route.addr.dst_sin.sin_addr.s_addr, own_address(0).sin_addr.s_addr);
		CHECK(!memcmp(id->route.addr.addr.ibaddr.sgid.raw + 12, &id->route.addr.src_sin.sin_addr, 4));
		CHECK(!memcmp(&id->route.addr.addr.ibaddr.dgid, &id->route.path_rec->dgid, 16));
	}
	IS(rdma_get_dst_port(made.client), rdma_get_src_port(made.listener));
	IS(rdma_get_src_port(made.server), rdma_get_src_port(made.listener));
	/* The listener's context. */
	CHECK(made.server->context == made.channels[0] && made.server->channel == made.channels[0]);
	send_message(made.client, made.server, "there");
	send_message(made.server, made.client, "and back");
	IS(rdma_disconnect(made.client), 0);
	pass(made.channels[0], RDMA_CM_EVENT_DISCONNECTED);
	IS(rdma_disconnect(made.server), 0);
	pass(made.channels[1], RDMA_CM_EVENT_DISCONNECTED);
	IS(made.client->qp->state, IBV_QPS_ERR);
	end_both(&made);
}

static void private_data_travel_both_ways_and_live_until_the_acknowledgement(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	struct rdma_cm_id *client = client_of(channel, RDMA_PS_TCP, ntohs(rdma_get_src_port(listener)));
	give_qp(client, IBV_QPT_RC);
	struct rdma_conn_param param = { .private_data = "question", .private_data_len = 8,
					 .responder_resources = 4, .initiator_depth = 2,
					 .retry_count = 5, .rnr_retry_count = 6 };
	IS(rdma_connect(client, &param), 0);
	struct rdma_cm_event *asked = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = asked->id;
	CHECK(asked->param.conn.private_data_len >= 8);
	IS(asked->param.conn.responder_resources, 2);
	IS(asked->param.conn.initiator_depth, 4);
	IS(asked->param.conn.rnr_retry_count, 6);
	IS(asked->param.conn.qp_num, client->qp->qp_num);
	give_qp(server, IBV_QPT_RC);
	struct rdma_conn_param reply = { .private_data = "answer", .private_data_len = 6,
					 .responder_resources = 2, .initiator_depth = RDMA_MAX_INIT_DEPTH,
					 .rnr_retry_count = 7 };
	IS(rdma_accept(server, &reply), 0);
	struct rdma_cm_event *answered = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(answered->id == client);
	IS(answered->param.conn.initiator_depth, 2);
	CHECK(!memcmp(answered->param.conn.private_data, "answer", 6));
	CHECK(!memcmp(asked->param.conn.private_data, "question", 8));
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	IS(ibv_query_qp(server->qp, &attr, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &init), 0);
	/* At most the number that the client serves. */
	CHECK(attr.max_rd_atomic == 4 && attr.max_dest_rd_atomic == 2);
	IS(rdma_ack_cm_event(asked), 0);
	IS(rdma_ack_cm_event(answered), 0);
	end(client);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	end(server);
	end(listener);
	rdma_destroy_event_channel(channel);
}

static struct rdma_addrinfo *info_for(int flags, uint16_t port)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info;
	char host[INET_ADDRSTRLEN], service[8];
	struct sockaddr_in address = own_address(0);
	inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
	snprintf(service, sizeof service, "%u", port);
	IS(rdma_getaddrinfo(host, service, &hints, &info), 0);
	IS(info->ai_qp_type, IBV_QPT_RC);
	CHECK(info->ai_next == NULL && info->ai_family == AF_INET);
	return info;
}

/* A server for one connection, without a channel. */
static void *serve(void *argument)
{
	struct rdma_cm_id *listener = argument, *id;
	IS(rdma_get_request(listener, &id), 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->event->listen_id == listener);
	CHECK(id->qp && id->channel != listener->channel);
	char received[16] = "";
	struct ibv_mr *mr = rdma_reg_msgs(id, received, sizeof received);
	IS(rdma_post_recv(id, NULL, received, sizeof received, mr), 0);
	IS(rdma_accept(id, NULL), 0);
	IS(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_wc wc;
	IS(rdma_get_recv_comp(id, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && !strcmp(received, "by itself"));
	IS(rdma_disconnect(id), 0);
	IS(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
	IS(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void endpoints_wait_for_their_events(void)
{
	struct rdma_addrinfo *info = info_for(RAI_PASSIVE, 0);
	struct ibv_qp_init_attr attr = plain_qp(IBV_QPT_RC);
	struct rdma_cm_id *listener, *client;
	CHECK(info->ai_flags == RAI_PASSIVE && info->ai_src_len == sizeof(struct sockaddr_in));
	IS(rdma_create_ep(&listener, info, NULL, &attr), 0);
	rdma_freeaddrinfo(info);
	IS(rdma_listen(listener, 1), 0);
	pthread_t server;
	IS(pthread_create(&server, NULL, serve, listener), 0);

	info = info_for(0, ntohs(rdma_get_src_port(listener)));
	attr = plain_qp(IBV_QPT_UD); /* The type is that of the address. */
	IS(rdma_create_ep(&client, info, NULL, &attr), 0);
	rdma_freeaddrinfo(info);
	IS(client->qp->qp_type, IBV_QPT_RC);
	IS(client->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	IS(rdma_connect(client, NULL), 0);
	IS(client->event->event, RDMA_CM_EVENT_ESTABLISHED);
	char sent[16] = "by itself";
	struct ibv_mr *mr = rdma_reg_msgs(client, sent, sizeof sent);
	struct ibv_wc wc;
	IS(rdma_post_send(client, NULL, sent, sizeof sent, mr, 0), 0);
	IS(rdma_get_send_comp(client, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(rdma_disconnect(client), 0);
	IS(client->event->event, RDMA_CM_EVENT_DISCONNECTED);
	IS(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(client);
	IS(pthread_join(server, NULL), 0);
	rdma_destroy_ep(listener);
}

/* Moves a queue pair created by the program to a state. */
static void move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;
	IS(rdma_init_qp_attr(id, &attr, &mask), 0);
	IS(attr.qp_state, state);
	IS(ibv_modify_qp(qp, &attr, mask), 0);
}

static void a_program_moves_queue_pairs_of_its_own(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_TCP);
	struct rdma_cm_id *client = client_of(channel, RDMA_PS_TCP, ntohs(rdma_get_src_port(listener)));
	struct side near = make_side(client->verbs, IBV_QPT_RC, 64), far = make_side(client->verbs, IBV_QPT_RC, 64);
	struct ibv_ece ece = { 0 };
	FAILS(rdma_set_local_ece(client, &ece), EINVAL);
	move(client, near.qp, IBV_QPS_INIT);
	post_recv(&near, 7, 0, 64);
	FAILS(rdma_connect(client, NULL), EINVAL);
	struct rdma_conn_param param = { .qp_num = near.qp->qp_num, .responder_resources = 1,
					 .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	IS(rdma_connect(client, &param), 0);
	struct rdma_cm_id *server = request_of(channel, listener);
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++)
		move(server, far.qp, state);
	/* The field has 24 bits. */
	param.qp_num = far.qp->qp_num | 0xff000000;
	IS(rdma_accept(server, &param), 0);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->id == client);
	IS(event->param.conn.qp_num, far.qp->qp_num);
	IS(rdma_ack_cm_event(event), 0);
	IS(rdma_get_remote_ece(client, &ece), 0);
	move(client, near.qp, IBV_QPS_RTR);
	move(client, near.qp, IBV_QPS_RTS);
	IS(rdma_establish(client), 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_sge sge = sge_of(&far, 0, 64);
	struct ibv_send_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	IS(ibv_post_send(far.qp, &wr, &bad), 0);
	IS(success_of(near.cq).wr_id, 7);
	IS(success_of(far.cq).wr_id, 8);
	destroy_side(&near);
	destroy_side(&far);
	end(client);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	end(server);
	end(listener);
	rdma_destroy_event_channel(channel);
}

static void a_datagram_service_is_found_by_its_port(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = listener_on(channel, RDMA_PS_UDP);
	struct rdma_cm_id *client = client_of(channel, RDMA_PS_UDP, ntohs(rdma_get_src_port(listener)));
	IS(client->qp_type, IBV_QPT_UD);
	give_qp(client, IBV_QPT_UD);
	IS(client->qp->state, IBV_QPS_RTS);
	struct rdma_conn_param param = { .private_data = "where?", .private_data_len = 6 };
	IS(rdma_connect(client, &param), 0);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;
	CHECK(!memcmp(event->param.ud.private_data, "where?", 6));
	IS(rdma_ack_cm_event(event), 0);
	give_qp(server, IBV_QPT_UD);
	IS(rdma_accept(server, NULL), 0);
	event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == client);
	IS(event->param.ud.qp_num, server->qp->qp_num);
	IS(event->param.ud.qkey, RDMA_UDP_QKEY);
	struct ibv_ah *ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);
	CHECK(ah != NULL);
	char sent[8] = "unsure", received[64] = "";
	struct ibv_mr *out = rdma_reg_msgs(client, sent, 8), *in = rdma_reg_msgs(server, received, 64);
	IS(rdma_post_recv(server, NULL, received, sizeof received, in), 0);
	IS(rdma_post_ud_send(client, NULL, sent, sizeof sent, out, 0, ah, event->param.ud.qp_num), 0);
	IS(rdma_ack_cm_event(event), 0);
	struct ibv_wc wc;
	IS(rdma_get_recv_comp(server, &wc), 1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 48 && !strcmp(received + 40, "unsure"));
	IS(rdma_get_send_comp(client, &wc), 1);
	IS(ibv_destroy_ah(ah), 0);
	IS(rdma_dereg_mr(out), 0);
	IS(rdma_dereg_mr(in), 0);
	end(client);
	end(server);
	end(listener);
	rdma_destroy_event_channel(channel);
}

static void a_group_is_joined_with_the_queue_pair_unless_it_only_sends(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in own = own_address(0), group = { .sin_family = AF_INET };
	struct rdma_cm_id *id;
	int there;
	group.sin_addr.s_addr = htonl(0xef010203); /* 239.1.2.3 */
	IS(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), 0);
	IS(rdma_bind_addr(id, (struct sockaddr *)&own), 0);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	give_qp(id, IBV_QPT_UD);
	IS(rdma_join_multicast(id, (struct sockaddr *)&group, &there), 0);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == id && event->param.ud.private_data == &there && event->status == 0);
	IS(event->param.ud.qp_num, 0xffffff);
	IS(event->param.ud.qkey, RDMA_UDP_QKEY);
	CHECK(event->param.ud.ah_attr.is_global);
	union ibv_gid gid = event->param.ud.ah_attr.grh.dgid;
	/* It is attached, so it can be detached exactly once. */
	IS(ibv_detach_mcast(id->qp, &gid, event->param.ud.ah_attr.dlid), 0);
	IS(ibv_attach_mcast(id->qp, &gid, event->param.ud.ah_attr.dlid), 0);
	IS(rdma_ack_cm_event(event), 0);
	IS(rdma_leave_multicast(id, (struct sockaddr *)&group), 0);
	CHECK(ibv_detach_mcast(id->qp, &gid, 0) != 0);

	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS,
						.addr = (struct sockaddr *)&group };
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	if (rdma_join_multicast_ex(id, &attr, NULL) == 0) {
		pass(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
		CHECK(ibv_detach_mcast(id->qp, &gid, 0) != 0);
		IS(rdma_leave_multicast(id, (struct sockaddr *)&group), 0);
	} else {
		IS(errno, EOPNOTSUPP);
	}
	end(id);
	rdma_destroy_event_channel(channel);
}

static void a_shared_receive_queue_serves_the_queue_pair_of_an_id(void)
{
	struct connection made = { { rdma_create_event_channel(), rdma_create_event_channel() }, 0, 0, 0 };
	made.listener = listener_on(made.channels[0], RDMA_PS_TCP);
	made.client = client_of(made.channels[1], RDMA_PS_TCP, ntohs(rdma_get_src_port(made.listener)));
	give_qp(made.client, IBV_QPT_RC);
	IS(rdma_connect(made.client, NULL), 0);
	made.server = request_of(made.channels[0], made.listener);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	IS(rdma_create_srq(made.server, NULL, &srq), 0);
	CHECK(made.server->srq && srq.attr.max_wr >= 4);
	give_qp(made.server, IBV_QPT_RC);
	CHECK(made.server->qp->srq == made.server->srq);
	IS(rdma_accept(made.server, NULL), 0);
	pass(made.channels[1], RDMA_CM_EVENT_ESTABLISHED);
	pass(made.channels[0], RDMA_CM_EVENT_ESTABLISHED);
	send_message(made.client, made.server, "shared");
	rdma_destroy_ep(made.client);
	pass(made.channels[0], RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(made.server);
	rdma_destroy_ep(made.listener);
	rdma_destroy_event_channel(made.channels[0]);
	rdma_destroy_event_channel(made.channels[1]);
}

static void all_devices_are_listed_with_one_context_each(void)
{
	int count = -1;
	struct ibv_context **list = rdma_get_devices(&count), **other = rdma_get_devices(NULL);
	CHECK(list && other && count >= 1 && list[count] == NULL);
	for (int i = 0; i < count; i++)
		CHECK(list[i] == other[i]);
	struct ibv_context *first = list[0];
	rdma_free_devices(other);
	rdma_free_devices(list);
	/* It stays open. */
	struct ibv_device_attr attr;
	IS(ibv_query_device(first, &attr), 0);
}

int main(int argc, char **argv)
{
	for (int i = 0; i < rounds(argc, argv); i++) {
		the_ids_show_their_route_and_share_a_context();
		private_data_travel_both_ways_and_live_until_the_acknowledgement();
		endpoints_wait_for_their_events();
		a_program_moves_queue_pairs_of_its_own();
		a_datagram_service_is_found_by_its_port();
		a_group_is_joined_with_the_queue_pair_unless_it_only_sends();
		a_shared_receive_queue_serves_the_queue_pair_of_an_id();
		all_devices_are_listed_with_one_context_each();
	}
	return 0;
}

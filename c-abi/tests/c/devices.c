/* The device list, names and numbers, and open devices. */
#include "test.h"

static struct ibv_device *find(struct ibv_device **list)
{
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "soft0"))
			return list[i];
	return NULL;
}

static void a_device_is_the_same_pointer_in_every_list(void)
{
	int count = -1;
	struct ibv_device **one = ibv_get_device_list(&count), **other = ibv_get_device_list(NULL);
	CHECK(one && other && one != other);
	CHECK(count >= 1);
	CHECK(one[count] == NULL);
	for (int i = 0; i < count; i++) {
		bool is_there = false;
		for (int j = 0; other[j]; j++)
			is_there |= other[j] == one[i];
		CHECK(is_there);
	}
	struct ibv_device *device = find(one);
	CHECK(device != NULL && device == find(other));
	CHECK(ibv_get_device_guid(device) != 0);
	IS(ibv_get_device_index(device), -1);
	ibv_free_device_list(one);
	/* The other list still holds it. */
	CHECK(!strcmp(ibv_get_device_name(device), "soft0"));
	ibv_free_device_list(other);
}

static void an_open_device_outlives_its_list(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device *device = find(list);
	struct ibv_context *one = ibv_open_device(device), *other = ibv_open_device(device);
	ibv_free_device_list(list);
	CHECK(one && other && one != other);
	CHECK(one->device == device && other->device == device);
	CHECK(!strcmp(ibv_get_device_name(one->device), "soft0"));
	CHECK(one->async_fd >= 0 && other->async_fd >= 0 && one->async_fd != other->async_fd);
	CHECK(one->num_comp_vectors >= 1);
	list = ibv_get_device_list(NULL);
	CHECK(find(list) == device);
	IS(ibv_close_device(one), 0);
	CHECK(find(list) == device);
	struct ibv_device_attr attr;
	IS(ibv_query_device(other, &attr), 0);
	CHECK(attr.phys_port_cnt == 1 && attr.max_qp > 0);
	CHECK(attr.node_guid == ibv_get_device_guid(device));
	IS(ibv_close_device(other), 0);
	ibv_free_device_list(list);
}

static void queries_agree(void)
{
	struct ibv_context *context = open_device();
	struct ibv_port_attr port;
	IS(ibv_query_port(context, 1, &port), 0);
	IS(port.state, IBV_PORT_ACTIVE);
	IS(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	CHECK(port.gid_tbl_len > 0 && port.pkey_tbl_len > 0);
	/* The symbol, linked by programs from 2014, fills 48 bytes. */
	union { uint64_t alignment; uint8_t bytes[52]; } old;
	memset(old.bytes, 0x5a, sizeof old.bytes);
/* The macro of the same name calls the operation of the context instead. */
#undef ibv_query_port
	IS(ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)&old), 0);
	CHECK(!memcmp(old.bytes, &port, 47));
	CHECK(old.bytes[48] == 0x5a && old.bytes[51] == 0x5a);
	CHECK(ibv_query_port(context, 0, (struct _compat_ibv_port_attr *)&old) != 0);
	CHECK(ibv_query_port(context, 2, (struct _compat_ibv_port_attr *)&old) != 0);

	union ibv_gid gid;
	struct ibv_gid_entry entry, table[64];
	IS(ibv_query_gid(context, 1, 0, &gid), 0);
	IS(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
	CHECK(!memcmp(&gid, &entry.gid, sizeof gid));
	IS(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
	IS(entry.port_num, 1);
	CHECK(ibv_query_gid_table(context, table, 64, 0) >= 1);
	CHECK(!memcmp(&table[0], &entry, sizeof entry));
	IS(ibv_query_gid_table(context, table, 0, 0), -EINVAL);
	IS(ibv_query_gid_ex(context, 1, 0, &entry, 1), EINVAL);
	IS(ibv_query_gid_ex(context, 1, (uint32_t)port.gid_tbl_len, &entry, 0), EINVAL);
	IS(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), -1);
	IS(ibv_query_gid(context, 2, 0, &gid), -1);
	IS(ibv_query_gid(context, 1, -1, &gid), -1);

	__be16 pkey;
	IS(ibv_query_pkey(context, 1, 0, &pkey), 0);
	IS(pkey, 0xffff);
	IS(ibv_get_pkey_index(context, 1, pkey), 0);
	IS(ibv_get_pkey_index(context, 1, 0x1234), -1);
	IS(ibv_query_pkey(context, 1, 30000, &pkey), -1);
	IS(ibv_query_pkey(context, 1, -1, &pkey), -1);

	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input input = { .comp_mask = 0 };
	IS(ibv_query_device_ex(context, NULL, &ex), 0);
	IS(ibv_query_device_ex(context, &input, &ex), 0);
	struct ibv_device_attr attr;
	IS(ibv_query_device(context, &attr), 0);
	CHECK(!memcmp(&attr, &ex.orig_attr, offsetof(struct ibv_device_attr, phys_port_cnt)));
	input.comp_mask = 1;
	IS(ibv_query_device_ex(context, &input, &ex), EINVAL);

	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	IS(ibv_query_rt_values_ex(context, &values), 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	IS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	for (int i = 0; i < rounds(argc, argv); i++) {
		a_device_is_the_same_pointer_in_every_list();
		an_open_device_outlives_its_list();
		queries_agree();
	}
	return 0;
}

/* The program by which `cargo xtask bench` measures control calls while other threads poll without
 * a pause. Prints the 99th percentile of each call's time in microseconds:
 *
 *     ibv_req_notify_cq 1.234
 *     ibv_destroy_qp 5.678
 *
 * Arguments: the device, the numbers of pollers and of calls. It runs on either library. */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct ibv_cq *cq;
static int stop;

static void *poll_without_a_pause(void *unused)
{
	struct ibv_wc wcs[4];

	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
		ibv_poll_cq(cq, 4, wcs);
	return NULL;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
	double left = *(const double *)one, right = *(const double *)other;

	return left < right ? -1 : left > right;
}

static void print(const char *name, double *times, int calls)
{
	qsort(times, (size_t)calls, sizeof(*times), compare);
	printf("%s %.3f\n", name, times[calls * 99 / 100]);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 1;
	int pollers = atoi(argv[2]), calls = atoi(argv[3]);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	struct ibv_comp_channel *channel = context ? ibv_create_comp_channel(context) : NULL;
	struct ibv_pd *pd = channel ? ibv_alloc_pd(context) : NULL;
	double *times = calloc((size_t)calls, sizeof(*times));
	pthread_t thread;

	cq = pd ? ibv_create_cq(context, 64, NULL, channel, 0) : NULL;
	if (!cq || !times)
		return 2;
	for (int i = 0; i < pollers; i++)
		if (pthread_create(&thread, NULL, poll_without_a_pause, NULL))
			return 3;
	usleep(100000);
	for (int i = 0; i < calls; i++) {
		double before = now();

		if (ibv_req_notify_cq(cq, 0))
			return 4;
		times[i] = now() - before;
		usleep(100);
	}
	print("ibv_req_notify_cq", times, calls);
	for (int i = 0; i < calls; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		double before = now();

		if (!qp || ibv_destroy_qp(qp))
			return 5;
		times[i] = now() - before;
		usleep(100);
	}
	print("ibv_destroy_qp", times, calls);
	return 0;
}

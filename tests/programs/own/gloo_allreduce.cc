// Ranks add vectors of 1 to 1,000,000 floats over Gloo's ibverbs transport, and compare every sum.
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s RANK RANKS FOLDER\n", argv[0]);
    return 2;
  }
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  gloo::transport::ibverbs::attr attributes;
  attributes.name = "soft0";
  attributes.port = 1;
  attributes.index = 0;
  auto device = gloo::transport::ibverbs::CreateDevice(attributes);
  gloo::rendezvous::FileStore files(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(files, device);

  for (size_t size = 1; size <= 1000000; size *= 10) {
    auto& data = *new std::vector<float>(size);
    for (size_t i = 0; i < size; i++) data[i] = float(rank + 1) * float(i % 1000);
    // Never destroyed: its destructor does not wait for the completion of the last send.
    auto* allreduce = new gloo::AllreduceRingChunked<float>(context, {data.data()}, size);
    allreduce->run();
    for (size_t i = 0; i < size; i++) {
      const float expected = float(ranks * (ranks + 1) / 2) * float(i % 1000);
      if (data[i] != expected) {
        std::fprintf(stderr, "rank %d: sum %zu of %zu is %f, not %f\n", rank, i, size, data[i], expected);
        return 1;
      }
    }
    std::printf("rank %d: %zu sums are right\n", rank, size);
    std::fflush(stdout);
  }
  // A rank that ends takes its queue pairs with it, also for messages that others still send.
  std::vector<std::string> all;
  for (int other = 0; other < ranks; other++) all.push_back("done" + std::to_string(other));
  files.set(all[rank], {1});
  files.wait(all);
  std::_Exit(0);
}

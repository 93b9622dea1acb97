// SPDX-License-Identifier: Apache-2.0
// libdtrain from C++: an average among the ranks of each node, and many small all-reduces that
// travel together while this program goes on computing.
#include <dtrain/dtrain.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void Check(dtrain_status status) {
  if (status == DTRAIN_OK) return;
  std::fprintf(stderr, "%s\n", dtrain_last_error());
  std::exit(1);  // without dtrain_finalize: the launcher takes this rank for failed
}

// The average of `value` over the ranks of this node.
double NodeAverage(double value) {
  dtrain_group node = nullptr;
  Check(dtrain_group_create(/*color=*/dtrain_node_rank(), /*key=*/dtrain_local_rank(), &node));
  dtrain_options options = DTRAIN_OPTIONS_INIT;
  options.group = node;
  options.name = "node average";
  dtrain_handle handle = 0;
  Check(dtrain_allreduce_async(&value, &value, 1, DTRAIN_FLOAT64, DTRAIN_AVG, &options, &handle));
  Check(dtrain_wait(handle));
  Check(dtrain_group_free(node));
  return value;
}

}  // namespace

int main() {
  Check(dtrain_init(nullptr));

  const double average = NodeAverage(dtrain_rank());

  // As a backward pass does: each layer's gradients start on their way as soon as they are there.
  std::vector<std::vector<float>> layers(50);
  std::vector<dtrain_handle> handles;
  for (std::vector<float>& gradient : layers) {
    gradient.assign(1000, static_cast<float>(dtrain_rank() + 1));
    handles.emplace_back();
    Check(dtrain_allreduce_async(gradient.data(), gradient.data(), gradient.size(), DTRAIN_FLOAT32,
                                 DTRAIN_SUM, nullptr, &handles.back()));
  }
  for (const dtrain_handle handle : handles) Check(dtrain_wait(handle));

  const int size = dtrain_size();
  const float expected = static_cast<float>(size * (size + 1) / 2);
  for (const std::vector<float>& gradient : layers) {
    for (const float value : gradient) {
      if (value != expected) {
        std::fprintf(stderr, "%f instead of %f\n", value, expected);
        return 1;
      }
    }
  }
  std::printf("rank %d of %d on node %d: node average %.2f, %zu all-reduces done\n", dtrain_rank(),
              size, dtrain_node_rank(), average, layers.size());
  Check(dtrain_finalize());
  return 0;
}

#include "worker/collective/block_sums.h"

namespace muster {

void BlockSums::Add(double block_sum) {
  stack_.emplace_back(1, block_sum);
  while (stack_.size() >= 2 && stack_[stack_.size() - 2].first == stack_.back().first) {
    stack_[stack_.size() - 2].second += stack_.back().second;
    stack_[stack_.size() - 2].first *= 2;
    stack_.pop_back();
  }
}

double BlockSums::Total() const {
  // From the end, as SplitOf cuts a ragged size.
  double sum = 0;
  for (std::size_t i = stack_.size(); i-- > 0;) sum = stack_[i].second + sum;
  return sum;
}

}  // namespace muster

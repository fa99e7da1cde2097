// Is every element of every tensor in exactly one file of a checkpoint?
#pragma once

#include <vector>

#include "protocol/box.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster {

// For tensors that are cut by a rule it holds by arithmetic, at every world size; what is looked at
// here are the boxes that ranks list of tensors cut kListed. kInvalidArgument names the tensor and
// the first gap or overlap, or the box that is of no such tensor. Takes time in the number of
// listed boxes, not of ranks and tensors. REQUIRES: each shape passes CountElements.
Status CheckTiling(const std::vector<TensorSpec>& tensors, const std::vector<FileRecord>& files);

}  // namespace muster

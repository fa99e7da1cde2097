#include "protocol/tiling.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace muster {

Status CheckTiling(const std::vector<TensorSpec>& tensors, const std::vector<FileRecord>& files) {
  std::map<std::size_t, std::vector<Box>> listed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].cut_dimension == kListed && tensors[i].alias_of.empty()) listed[i] = {};
  }
  for (const FileRecord& file : files) {
    for (const ListedBox& part : file.listed) {
      const auto boxes = listed.find(static_cast<std::size_t>(part.tensor));
      if (boxes == listed.end() || part.box.empty() ||
          !Fits(part.box, tensors[boxes->first].shape)) {
        return InvalidArgument(fmt::format("file {} lists the box {} of tensor {}, which has none",
                                           file.name, part.box.ToString(), part.tensor));
      }
      boxes->second.push_back(part.box);
    }
  }
  for (auto& [tensor, boxes] : listed) {
    const Status tiled = TilesExactly(tensors[tensor].shape, std::move(boxes));
    if (!tiled.ok()) {
      return InvalidArgument(fmt::format("tensor {}: {}", tensors[tensor].name, tiled.message()));
    }
  }
  return {};
}

}  // namespace muster

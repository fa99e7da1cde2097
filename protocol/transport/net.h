// The names of Asio that Muster uses. Sockets and timers carry the concrete executor of an
// io_context: the type-erased one costs a tenth of the coordinator's time per heartbeat.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>

namespace muster {

namespace net = boost::asio;

using IoContext = net::io_context;
using Executor = IoContext::executor_type;
using Tcp = net::ip::tcp;
using Socket = net::basic_stream_socket<Tcp, Executor>;
using Acceptor = net::basic_socket_acceptor<Tcp, Executor>;
using Resolver = net::ip::basic_resolver<Tcp, Executor>;
using Timer = net::basic_waitable_timer<std::chrono::steady_clock,
                                        net::wait_traits<std::chrono::steady_clock>, Executor>;
using ErrorCode = boost::system::error_code;

}  // namespace muster

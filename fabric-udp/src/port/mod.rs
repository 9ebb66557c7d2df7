//! The port: datagrams in and out, through io_uring or plain sockets.

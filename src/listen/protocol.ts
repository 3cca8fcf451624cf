import type net from 'node:net';

/** Where a connection goes when its protocol is known. With TLS, the socket is the decrypted one. */
export interface Protocols {
  http1(socket: net.Socket): void;
  http2(socket: net.Socket): void;
}

/** HTTP/2 begins with `PRI`, which no HTTP/1.1 request does. The first bytes can arrive one by one. */
export function sniff(socket: net.Socket, protocols: Protocols): void {
  let head: Buffer = Buffer.alloc(0);
  const inspect = (piece: Buffer) => {
    head = head.length === 0 ? piece : Buffer.concat([head, piece]);
    if (head.length < 3) return;
    socket.off('data', inspect);
    socket.pause();
    socket.unshift(head);
    if (head.toString('latin1', 0, 3) === 'PRI') protocols.http2(socket);
    else {
      protocols.http1(socket);
      socket.resume();
    }
  };
  socket.on('data', inspect);
}

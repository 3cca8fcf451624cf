import { once } from 'node:events';
import net from 'node:net';
import tls from 'node:tls';

/**
 * A plain port in front of a port with TLS, so that clients that send bytes as a test wants them also send them through
 * TLS. Requests ALPN as the first bytes of a connection demand it: `h2` for those of HTTP/2.
 */
export interface TlsTunnel {
  readonly port: number;
  readonly url: string;
  close(): Promise<void>;
}

export async function openTlsTunnel(target: number, ca: string): Promise<TlsTunnel> {
  const ends = new Set<net.Socket>();
  const listener = net.createServer({ pauseOnConnect: true }, async (near) => {
    ends.add(near.on('error', () => far?.destroy()));
    let far: tls.TLSSocket | undefined;
    near.once('close', () => {
      ends.delete(near);
      far?.destroy();
    });
    const head = await firstBytes(near, 3).catch(() => undefined);
    if (head === undefined) return;
    const ALPNProtocols = [head.toString('latin1', 0, 3) === 'PRI' ? 'h2' : 'http/1.1'];
    far = tls.connect({ host: '127.0.0.1', port: target, ca, ALPNProtocols });
    far.on('error', () => near.destroy());
    far.once('close', () => near.destroy());
    far.write(head);
    near.pipe(far).pipe(near);
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address() as net.AddressInfo;
  return {
    port,
    url: `http://127.0.0.1:${port}`,
    close: async () => {
      for (const end of ends) end.destroy();
      await new Promise((resolve) => listener.close(resolve));
    },
  };
}

async function firstBytes(socket: net.Socket, count: number): Promise<Buffer> {
  let head: Buffer = Buffer.alloc(0);
  while (head.length < count) {
    socket.resume();
    const [piece] = (await once(socket, 'data')) as [Buffer];
    socket.pause();
    head = Buffer.concat([head, piece]);
  }
  return head;
}

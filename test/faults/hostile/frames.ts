/** HTTP/2 frames as bytes, for clients that follow no protocol rules. RFC 9113, sections 4 to 6. */
import { once } from 'node:events';
import net from 'node:net';

export const FRAME = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  ping: 6,
  goaway: 7,
  windowUpdate: 8,
  continuation: 9,
} as const;

export const FLAG = { endStream: 1, ack: 1, endHeaders: 4 } as const;

const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1');
const INITIAL_WINDOW_SIZE = 4;
const LARGEST_WINDOW = 2 ** 31 - 1;

export function frame(type: number, flags: number, stream: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const header = Buffer.alloc(9);
  header.writeUIntBE(payload.length, 0, 3);
  header.writeUInt8(type, 3);
  header.writeUInt8(flags, 4);
  header.writeUInt32BE(stream, 5);
  return Buffer.concat([header, payload]);
}

export function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value >>> 0);
  return bytes;
}

/** Header fields as literals without indexing, without Huffman coding (RFC 7541, section 6.2.2). */
export function headerBlock(fields: readonly (readonly [string, string])[]): Buffer {
  return Buffer.concat(fields.flatMap(([name, value]) => [Buffer.from([0]), literal(name), literal(value)]));
}

function literal(text: string): Buffer {
  const bytes = Buffer.from(text, 'latin1');
  if (bytes.length < 127) return Buffer.concat([Buffer.from([bytes.length]), bytes]);
  const length = [127];
  let rest = bytes.length - 127;
  for (; rest >= 128; rest >>>= 7) length.push((rest & 127) | 128);
  return Buffer.concat([Buffer.from([...length, rest]), bytes]);
}

export function grpcHeaders(path: string): Buffer {
  return headerBlock([
    [':method', 'POST'],
    [':scheme', 'http'],
    [':path', path],
    [':authority', 'localhost'],
    ['content-type', 'application/grpc+proto'],
    ['te', 'trailers'],
  ]);
}

/** A raw connection. It sends the given bytes as fast as the server accepts them, and reads unless told not to. */
export class RawConnection {
  readonly socket: net.Socket;
  /** Bytes received from the server. */
  received = 0;
  #next = 1;

  private constructor(socket: net.Socket) {
    this.socket = socket;
    socket.on('error', () => undefined); // closed by the server, which some tests expect
    socket.on('data', (piece: Buffer) => {
      this.received += piece.length;
    });
  }

  /** A connection after preface and SETTINGS; `wide` opens every window to its maximum. */
  static async open(port: number, { wide = false } = {}): Promise<RawConnection> {
    const socket = net.connect({ host: '127.0.0.1', port, noDelay: true });
    await once(socket, 'connect');
    const connection = new RawConnection(socket);
    const settings = wide ? Buffer.concat([Buffer.from([0, INITIAL_WINDOW_SIZE]), uint32(LARGEST_WINDOW)]) : undefined;
    await connection.send(Buffer.concat([PREFACE, frame(FRAME.settings, 0, 0, settings)]));
    if (wide) await connection.send(frame(FRAME.windowUpdate, 0, 0, uint32(LARGEST_WINDOW - 65_535)));
    return connection;
  }

  get closed(): boolean {
    return this.socket.destroyed;
  }

  /** The next unused stream id. */
  nextStream(): number {
    this.#next += 2;
    return this.#next - 2;
  }

  /** Resolves when the system has accepted the bytes, or the connection is closed. */
  async send(bytes: Uint8Array): Promise<void> {
    if (this.socket.destroyed || this.socket.write(bytes)) return;
    await new Promise<void>((resolve) => {
      const done = () => {
        this.socket.off('drain', done);
        this.socket.off('close', done);
        resolve();
      };
      this.socket.on('drain', done);
      this.socket.on('close', done);
    });
  }

  /** A complete request with one message. */
  async request(path: string, body: Uint8Array): Promise<number> {
    const stream = this.nextStream();
    const head = frame(FRAME.headers, FLAG.endHeaders, stream, grpcHeaders(path));
    await this.send(Buffer.concat([head, frame(FRAME.data, FLAG.endStream, stream, body)]));
    return stream;
  }

  /** Reads no more from the socket: the bytes of the server queue on its side. */
  stopReading(): void {
    this.socket.pause();
  }

  /** Disconnects with a reset. */
  reset(): void {
    this.socket.resetAndDestroy();
  }
}

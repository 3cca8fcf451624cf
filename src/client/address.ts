/** What URL removes without an error: blanks, tabs and newlines, and a colon without a port. */
const REMOVED = /[\s\p{Cc}]|:\/*$/u;

/** Where a server is. */
export interface Address {
  /** For people: the origin, or `unix:PATH`. */
  readonly url: string;
  /** What requests name: `http://localhost` for a Unix socket. */
  readonly origin: string;
  /** Path of a Unix socket. */
  readonly socket?: string;
}

const UNIX = /^unix:(?:\/\/(?=\/))?(.+)$/su;

/**
 * Reads an address: `127.0.0.1:50051` is the origin `http://127.0.0.1:50051`. Throws TypeError for any other text, so
 * that a wrong address fails here and not at the first call.
 */
export function parseAddress(address: string): Address {
  const socket = UNIX.exec(address)?.[1];
  if (socket !== undefined) return { url: `unix:${socket}`, origin: 'http://localhost', socket };
  const text = /^https?:\/\//.test(address) ? address : `http://${address}`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isOrigin = url !== undefined && url.pathname === '/' && url.search === '' && url.username === '';
  if (!isOrigin || url.hostname === '' || url.port === '0' || REMOVED.test(address)) {
    throw new TypeError(
      `address is ${JSON.stringify(address)}: expected host:port, such as 127.0.0.1:50051, https://host:port, http://host:port or unix:PATH, without blanks`,
    );
  }
  return { url: url.origin, origin: url.origin };
}

/** What URL removes without an error: blanks, tabs and newlines, and a colon without a port. */
const REMOVED = /[\s\p{Cc}]|:\/*$/u;

/**
 * Returns the origin of an address: `127.0.0.1:50051` becomes `http://127.0.0.1:50051`. Throws TypeError for any other
 * text, so that a wrong address fails here and not at the first call.
 */
export function parseAddress(address: string): string {
  const text = /^https?:\/\//.test(address) ? address : `http://${address}`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isOrigin = url !== undefined && url.pathname === '/' && url.search === '' && url.username === '';
  if (!isOrigin || url.hostname === '' || url.port === '0' || REMOVED.test(address)) {
    throw new TypeError(
      `address is ${JSON.stringify(address)}: expected host:port, such as 127.0.0.1:50051, or http://host:port, without blanks`,
    );
  }
  return url.origin;
}

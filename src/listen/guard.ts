/**
 * Accepted authorities of a request: a name, an IPv4 address or an IPv6 address in brackets, with or without a port.
 * Other text would make `new URL()` throw in code that does not catch it.
 */
const AUTHORITY = /^(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,64}\])(?::\d{1,5})?$/;

export function isAuthority(authority: string | undefined): authority is string {
  return authority !== undefined && AUTHORITY.test(authority) && URL.canParse(`http://${authority}`);
}

/** Returns the size of the headers. HTTP/2 only asks peers to respect the limit, so the size must be checked. */
export function headerBytes(rawHeaders: readonly string[]): number {
  let bytes = 0;
  for (const part of rawHeaders) bytes += part.length;
  return bytes;
}

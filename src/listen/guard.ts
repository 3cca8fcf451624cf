/**
 * What a request may claim to be addressed to: a name, an IPv4 address or an IPv6 address in brackets, with a port or without. Everything else
 * would make `new URL()` throw somewhere below, where nobody catches it.
 */
const AUTHORITY = /^(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,64}\])(?::\d{1,5})?$/;

export function isAuthority(authority: string | undefined): authority is string {
  return authority !== undefined && AUTHORITY.test(authority) && URL.canParse(`http://${authority}`);
}

/** HTTP/2 only asks peers to keep to the limit; what comes all the same has to be counted. */
export function headerBytes(rawHeaders: readonly string[]): number {
  let bytes = 0;
  for (const part of rawHeaders) bytes += part.length;
  return bytes;
}

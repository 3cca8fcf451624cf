/**
 * Returns the origin that an address names: `127.0.0.1:50051` becomes `http://127.0.0.1:50051`. Throws TypeError for any other text, so that
 * a wrong address is rejected here and not at the first call.
 */
export function parseAddress(address: string): string {
  const text = /^https?:\/\//.test(address) ? address : `http://${address}`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || url.hostname === '' || url.pathname !== '/' || url.search !== '' || url.username !== '') {
    throw new TypeError(
      `address ${JSON.stringify(address)} is not an address: write host:port (127.0.0.1:50051) or http://host:port`,
    );
  }
  return url.origin;
}

/** Version of the rules by which requests are digested. A change of the rules needs a new version. */
const VERSION = '2';

/** Returns a request's digest as it is stored under its idempotency key. */
export function versionedDigest(digest: string): string {
  return `${VERSION}:${digest}`;
}

/**
 * Whether a stored digest is of another request than the one given. Digests of different versions cannot be compared:
 * such a request is accepted.
 */
export function isOtherRequest(stored: string, request: string): boolean {
  return stored !== request && versionOf(stored) === versionOf(request);
}

/** Empty for digests that were stored before versions. */
function versionOf(digest: string): string {
  return digest.slice(0, Math.max(0, digest.indexOf(':')));
}

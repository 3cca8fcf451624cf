/**
 * Removes the password from a database URL, and its query except `host`. Also works on text that is not a valid URL.
 */
export function scrubUrl(text: string): string {
  const [base = '', query = ''] = splitOnce(text, '?');
  const host = new URLSearchParams(query).get('host');
  return base.replace(/(:\/\/[^:/?#]*):.*@/su, '$1@') + (host === null ? '' : `?host=${host}`);
}

function splitOnce(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator);
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
}

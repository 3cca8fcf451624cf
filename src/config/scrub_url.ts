/**
 * Returns a valid database URL without its password, and without its query except `host`. Of any other text, returns no
 * more than its scheme.
 */
export function scrubUrl(text: string): string {
  if (text.startsWith('sqlite:')) return text;
  const scheme = schemeOf(text);
  const parsed = URL.parse(text.replace('@/', '@localhost/'));
  if (parsed === null || !scheme.startsWith('postgres')) return scheme;
  const { username, host, pathname, searchParams } = parsed;
  const socket = searchParams.get('host');
  return `${scheme}${username === '' ? '' : `${username}@`}${host}${pathname}${socket === null ? '' : `?host=${socket}`}`;
}

const SCHEME =
  /^(?:sqlite:|(?:postgres|postgresql(?:\+(?:psycopg2?|asyncpg|pg8000))?|mysql|mariadb|mongodb|redis|file|https?):\/\/)/iu;

/** Returns the scheme of a URL. Empty for text that begins with no usual one: it could be a part of a password. */
export function schemeOf(text: string): string {
  return SCHEME.exec(text.trim())?.[0] ?? '';
}

/** Whether a text that should be a name or a path may have a password, before an `@` or after a `=`. */
export function mayHoldPassword(text: string): boolean {
  const withoutDrive = text.replace(/^[a-z]:\\/iu, '');
  return /:.*@|(?:password|passwd|pass|pwd)\s*=/isu.test(withoutDrive);
}

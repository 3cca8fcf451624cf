/**
 * Returns a valid database URL without its password, and without its query except `host`. Of any other text, returns no
 * more than its scheme.
 */
export function scrubUrl(text: string): string {
  if (text.startsWith('sqlite:')) return text;
  const scheme = schemeOf(text);
  const parsed = URL.parse(withHostList(text.replace('@/', '@localhost/')));
  if (parsed === null || !scheme.startsWith('postgres')) return scheme;
  const { username, host, pathname, searchParams } = parsed;
  const socket = searchParams.get('host');
  if (socket?.includes(',') === true) {
    const ports = searchParams.get('port')?.split(',') ?? [];
    const hosts = socket.split(',').map((each, i) => `${bracketed(each)}:${ports[i] ?? ports[0] ?? 5432}`);
    return `${scheme}${username === '' ? '' : `${username}@`}${hosts.join(',')}${pathname}`;
  }
  return `${scheme}${username === '' ? '' : `${username}@`}${host}${pathname}${socket === null ? '' : `?host=${socket}`}`;
}

/**
 * Moves the hosts of a URL with several (`postgres://USER@A:1,B:2/DATABASE`) into its query, as `host=A,B&port=1,2`,
 * because URL cannot parse them. Both forms are those of libpq. Returns any other text unchanged.
 */
export function withHostList(text: string): string {
  const [, before = '', list = '', after = ''] = SEVERAL_HOSTS.exec(text) ?? [];
  const hosts = list.split(',').map((host) => HOST.exec(host));
  const [path = '', query] = after.split(/\?(.*)/su);
  if (list === '' || after.includes('@') || /(?:^|&)host=/u.test(query ?? '') || hosts.includes(null)) return text;
  const names = hosts.map((host) => host?.[1]?.replace(/^\[|\]$/gu, ''));
  const ports = hosts.map((host) => host?.[2] ?? '5432');
  const added = `host=${encodeURIComponent(names.join())}&port=${encodeURIComponent(ports.join())}`;
  return `${before}localhost${path}?${query ? `${query}&` : ''}${added}`;
}

const SEVERAL_HOSTS = /^(\w+(?:\+\w+)?:\/\/(?:[^/?#]*@)?)([^@/?#]*,[^@/?#]*)((?:[/?#].*)?)$/su;
const HOST = /^(\[[\da-f:.]+\]|[^:[\]]*)(?::(\d+))?$/iu;

function bracketed(host: string): string {
  return host.includes(':') ? `[${host}]` : host;
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

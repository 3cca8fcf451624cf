import { parse } from 'yaml';
import { z } from 'zod';
import { EVERY_NAMESPACE, type Role } from '../domain/access.ts';
import { defaultNamespaces } from '../domain/caller.ts';

/** Whom a token or a certificate names. */
export interface Subject {
  /** Of a token. */
  readonly sub?: string;
  /** Subject alternative name of a certificate. */
  readonly san?: string;
  /** Of a token. */
  readonly claims?: Readonly<Record<string, unknown>>;
}

/** What an entry of the mapping gives. */
export interface Grant {
  /** Undefined: the principal is called as its subject is. */
  readonly name: string | undefined;
  readonly role: Role;
  readonly namespaces: readonly string[];
}

const MOST_ENTRIES = 10_000;
const pattern = z.string().min(1).max(1024);
const ENTRY = z
  .strictObject({
    sub: pattern.optional(),
    san: pattern.optional(),
    claim: z.string().min(1).max(1024).optional(),
    value: pattern.optional(),
    name: z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9._/@:-]{0,127}$/u)
      .refine((name) => name !== 'anonymous' && name !== 'anabranch', 'this name is reserved')
      .optional(),
    role: z.enum(['read', 'work', 'write', 'admin']),
    namespaces: z
      .array(z.string().regex(/^(\*|[a-z0-9][a-z0-9-]{0,62})$/u))
      .min(1)
      .max(100)
      .refine((all) => all.length === 1 || !all.includes(EVERY_NAMESPACE), 'expected * alone, or names')
      .optional(),
  })
  .refine(
    ({ sub, san, claim }) => [sub, san, claim].filter((each) => each !== undefined).length === 1,
    'expected exactly one of sub, san and claim',
  )
  .refine(({ claim, value }) => (claim === undefined) === (value === undefined), 'expected claim and value together');
const FILE = z.strictObject({ principals: z.array(ENTRY).max(MOST_ENTRIES) });

type Entry = z.infer<typeof ENTRY>;

/** The mapping file: which subjects have which role, in which namespaces. The first entry that fits decides. */
export class Mapping {
  readonly #entries: readonly Entry[];

  private constructor(entries: readonly Entry[]) {
    this.#entries = entries;
  }

  /** Throws an error that says what is wrong, and where. */
  static parse(text: string): Mapping {
    const document: unknown = parse(text, { maxAliasCount: 0 });
    const { success, data, error } = FILE.safeParse(document);
    if (success) return new Mapping(data.principals);
    const [{ path, message } = { path: [], message: '' }] = error.issues;
    const place = path.map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`)).join('');
    const value = JSON.stringify(valueAt(document, path)) ?? 'missing';
    throw new Error(`${place.slice(1) || 'the document'} is ${value.slice(0, 200)}: ${message}.`);
  }

  /** Undefined: the subject has no role. */
  grantOf(subject: Subject): Grant | undefined {
    const entry = this.#entries.find((each) => fits(each, subject));
    if (entry === undefined) return undefined;
    const role = entry.role.toUpperCase() as Role;
    return { name: entry.name, role, namespaces: entry.namespaces ?? defaultNamespaces(role) };
  }
}

function fits({ sub, san, claim, value }: Entry, subject: Subject): boolean {
  if (sub !== undefined) return subject.sub !== undefined && matches(sub, subject.sub);
  if (san !== undefined) return subject.san !== undefined && matches(san, subject.san);
  if (claim === undefined || value === undefined || subject.claims === undefined) return false;
  if (!Object.hasOwn(subject.claims, claim)) return false;
  // Groups, for example, are a list.
  const claimed = [subject.claims[claim]].flat();
  return claimed.some((each) => isScalar(each) && matches(value, String(each)));
}

function isScalar(value: unknown): boolean {
  return typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean';
}

/** A pattern is exact, or a prefix that ends in `*`. */
function matches(wanted: string, text: string): boolean {
  return wanted.endsWith('*') ? text.startsWith(wanted.slice(0, -1)) : text === wanted;
}

function valueAt(document: unknown, path: readonly PropertyKey[]): unknown {
  let value = document;
  for (const part of path) value = (value as Record<PropertyKey, unknown> | null | undefined)?.[part];
  return value;
}

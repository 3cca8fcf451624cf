import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { ErrorReasonSchema } from '../../gen/es/anabranch/v1/error_pb.js';

const document = read('docs/errors.md');
const sections = document.split(/^## /mu).slice(1);
const reasons = ErrorReasonSchema.values.map((value) => value.localName).filter((name) => name !== 'UNSPECIFIED');
/** The comment of each reason in error.proto, on one line. */
const comments = commentsOf(read('proto/anabranch/v1/error.proto'));

describe('docs/errors.md', () => {
  it('explains every reason of the enum, in its order, and no other', () => {
    expect(sections.map((section) => section.split('\n')[0])).toEqual(reasons);
  });

  it.each(reasons)('%s: has the same codes and metadata as error.proto, and what to do', (reason) => {
    const section = sections.find((each) => each.startsWith(`${reason}\n`)) ?? '';
    const [codes = '', metadata = ''] = section.split('\n')[2]?.split(' · ') ?? [];
    const comment = comments.get(reason) ?? '';
    expect(codes.match(/[A-Z_]{3,}/gu)).toEqual(codesOf(comment));
    expect(ticked(metadata)).toEqual(ticked(/Metadata: (.*)$/u.exec(comment)?.[1] ?? ''));
    expect(metadata.startsWith('no metadata')).toBe(!comment.includes('Metadata:'));
    expect(section.includes('Comes with RetryInfo')).toBe(comment.includes('Comes with RetryInfo'));
    expect(section).toMatch(/^\*\*Do:\*\* .+\.$/mu);
  });
});

function read(path: string): string {
  return readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
}

function ticked(text: string): string[] {
  return [...text.matchAll(/`(\w+)`/gu)].map((match) => match[1] ?? '');
}

function codesOf(comment: string): string[] {
  const first = comment.slice(0, comment.search(/[.:]/u));
  return first.match(/[A-Z_]{3,}/gu) ?? [];
}

function commentsOf(proto: string): Map<string, string> {
  const found = new Map<string, string>();
  let comment: string[] = [];
  for (const line of proto.split('\n').map((each) => each.trim())) {
    const name = /^ERROR_REASON_(\w+) = /u.exec(line)?.[1];
    if (line.startsWith('//')) comment.push(line.slice(2).trim());
    else {
      if (name !== undefined) found.set(name, comment.join(' '));
      comment = [];
    }
  }
  return found;
}

import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { NewRolloutSchema } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { COMPARED_FIELDS } from '../../src/store/sql/kit/given_fields.ts';

/** Group number and number find the existing rollout; an id may differ, and the policy belongs to the group. */
const NOT_COMPARED = ['group_number', 'number', 'rollout_id', 'on_success'];

it('Q6: CreateRollouts compares every field of a rollout except its place, its id and the policy of its group', () => {
  const fields = NewRolloutSchema.fields.map(({ name }) => name);
  expect([...COMPARED_FIELDS].sort()).toEqual(fields.filter((name) => !NOT_COMPARED.includes(name)).sort());
});

it('Q6: docs/errors.md lists the fields that CreateRollouts compares', () => {
  const document = readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8');
  const listed = /`fields` lists the differing fields: (.*?)\./u.exec(document)?.[1] ?? '';
  expect([...listed.matchAll(/`(\w+)`/gu)].map(([, name]) => name)).toEqual(COMPARED_FIELDS);
});

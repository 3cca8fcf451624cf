import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type EndReport, endDigest } from '../../src/domain/end_digest.ts';

const REPORT: EndReport = {
  message: 'done',
  result: {
    reward: 1.5,
    taskCompleted: true,
    agentReportedSuccess: undefined,
    success: false,
    errors: ['e'],
    summaryJson: '{"a": 1}',
  },
  metrics: new Map([
    ['tokens', 100],
    ['loss', Number.NaN],
  ]),
  timings: new Map([['task', { startTime: 1n, endTime: undefined }]]),
  validations: ['a', 'b'].map((name) => ({
    name,
    success: true,
    advisory: false,
    query: 'q',
    expectedResult: 'x',
    actualResult: 'y',
    executionMs: 3,
    errorMessage: '',
    detailsJson: '{}',
  })),
};

it('L5: the digest of an end is the one stored in databases', () => {
  expect(endDigest(REPORT)).toBe('06980e4f1bd3a242abf965c4268fafaeb4a9dec23e63c0793926c824169a90a6');
  const bare = 'c78f7b0a64f4c7c02a9ff1b3a26e9f837c0a790fb6fdec4c9c0fe0069d1f1187';
  expect(endDigest({ ...REPORT, validations: [] })).toBe(bare);
});

it('L5: the order of metrics, timings and validations does not change it', () => {
  const { metrics, validations } = REPORT;
  const turned = { ...REPORT, metrics: new Map([...metrics].reverse()), validations: validations.toReversed() };
  expect(endDigest(turned)).toBe(endDigest(REPORT));
});

it('L5: any other value changes it, and so does an absent value', () => {
  const { result, validations } = REPORT;
  const [first, second] = validations as [EndReport['validations'][number], EndReport['validations'][number]];
  const others: Partial<EndReport>[] = [
    { message: '' },
    { result: undefined },
    { result: { ...result!, reward: undefined } },
    { result: { ...result!, reward: -1.5 } },
    { result: { ...result!, agentReportedSuccess: false } },
    { result: { ...result!, taskCompleted: undefined } },
    { result: { ...result!, success: undefined } },
    { result: { ...result!, errors: [] } },
    { result: { ...result!, summaryJson: '{"a":1}' } },
    { metrics: new Map() },
    { metrics: new Map([['tokens', 100]]) },
    { timings: new Map() },
    { timings: new Map([['task', { startTime: 1n, endTime: 2n }]]) },
    { timings: new Map([['task', { startTime: undefined, endTime: 1n }]]) },
    { validations: [] },
    { validations: [first] },
    { validations: [first, { ...second, success: false }] },
    { validations: [first, { ...second, name: 'c' }] },
    { validations: [first, { ...second, advisory: true }] },
    ...(['query', 'expectedResult', 'actualResult', 'errorMessage', 'detailsJson'] as const).map((field) => {
      return { validations: [first, { ...second, [field]: 'other' }] };
    }),
    { validations: [first, { ...second, executionMs: undefined }] },
  ];
  const digests = [REPORT, ...others.map((other) => ({ ...REPORT, ...other }))].map(endDigest);
  expect(new Set(digests).size).toBe(digests.length);
});

it('L5: numbers are compared by value, including NaN and the sign of zero', () => {
  const digestOf = (reward: number) => endDigest({ ...REPORT, result: { ...REPORT.result!, reward } });
  fc.assert(
    fc.property(fc.double(), fc.double(), (a, b) => {
      expect(digestOf(a) === digestOf(b)).toBe(Object.is(a, b));
    }),
  );
  expect(digestOf(-0)).not.toBe(digestOf(0));
});

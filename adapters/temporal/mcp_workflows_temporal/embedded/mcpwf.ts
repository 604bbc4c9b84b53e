// mcpwf.ts - ask a person, and tell how far the work is, from a Temporal workflow in TypeScript.
//
//   import { elicit, progress } from './mcpwf';
//
//   progress('checking stock', 1, 3);
//   const { action, content } = await elicit('Approve this order?', {
//     type: 'object',
//     properties: { ok: { type: 'boolean' }, note: { type: 'string' } },
//     required: ['ok'],
//   });
//
// A copy of yours to keep beside your workflows: it needs @temporalio/workflow and nothing else.
// From mcp-workflows, Apache-2.0. Contract 1: docs/engines/temporal-contract.md

import {
  ApplicationFailure,
  condition,
  defineSignal,
  defineUpdate,
  log,
  setCurrentDetails,
  setHandler,
  upsertMemo,
  uuid4,
  workflowInfo,
} from '@temporalio/workflow';

/** A flat form: what MCP clients can show to a person (MCP elicitation, form mode). */
export interface Form {
  type: 'object';
  properties?: Record<string, Field>;
  required?: string[];
}

/** One field of a form; more JSON Schema words (title, description, format, items, ...) are passed on as they are. */
export interface Field {
  type: 'string' | 'number' | 'integer' | 'boolean' | 'array';
  enum?: unknown[];
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  [word: string]: unknown;
}

/** What the person did with the question (MCP `ElicitResult`). */
export interface Answer<Content = Record<string, any>> {
  action: 'accept' | 'decline' | 'cancel';
  content: Content; // by the form; empty if not accepted
}

/**
 * Ask the person behind the task and wait, as long as it takes, for the answer.
 *
 * Cancelling the scope takes the question back, and rejects with CancelledFailure. A form that no client can show
 * rejects with an ApplicationFailure of type McpBadQuestion, which fails the workflow.
 */
export async function elicit<Content = Record<string, any>>(message: string, form: Form): Promise<Answer<Content>> {
  const wrong = wrongWithForm(form);
  if (wrong) throw ApplicationFailure.nonRetryable(wrong, 'McpBadQuestion');
  listen();
  const key = uuid4(); // the same on replay; never reused, not even by the next run
  open.set(key, { method: 'elicitation/create', params: { mode: 'form', message, requestedSchema: form } });
  publish();
  try {
    await condition(() => answers.has(key));
  } catch (error) {
    if (open.delete(key)) publish(); // cancelled: taken back
    throw error;
  }
  const answer = answers.get(key) as Answer<Content>;
  answers.delete(key);
  return answer;
}

/**
 * Say what the workflow is doing, and that it did `value` of `total`, in a unit of your own.
 *
 * Each new text or number is one event in the history: report steps, not bytes.
 */
export function progress(message: string, value: number | null = null, total: number | null = null): void {
  const told = workflowInfo().memo?.['mcp.status'] as Status | undefined;
  if (told?.message === message && told.progress === value && told.total === total) return;
  upsertMemo({ 'mcp.status': { message, progress: value, total } });
  setCurrentDetails(message);
}

interface Status {
  message: string;
  progress: number | null;
  total: number | null;
}

interface Question {
  method: 'elicitation/create';
  params: { mode: 'form'; message: string; requestedSchema: Form };
}

// Module state is state of one workflow run: each has an isolate of its own.
const open = new Map<string, Question>();
const answers = new Map<string, Answer>(); // on their way to who waits for them
const answered = new Set<string>();
let listening = false;

const answerUpdate = defineUpdate<void, [string, unknown]>('mcp_answer');
const answerSignal = defineSignal<[{ key: string; response: unknown }]>('mcp_answer_signal');

function listen(): void {
  if (listening) return;
  listening = true;
  setHandler(answerUpdate, take, { validator: refuse });
  setHandler(answerSignal, ({ key, response }) => {
    try {
      refuse(key, response);
    } catch (error) {
      log.warn('ignored an answer', { reason: (error as Error).message });
      return;
    }
    take(key, response);
  });
}

/** Throws what is wrong with this answer; one delivered twice is fine, and ignored by `take`. */
function refuse(key: string, response: unknown): void {
  if (answered.has(key)) return;
  const question = open.get(key);
  if (!question) throw ApplicationFailure.nonRetryable(`no open question ${quote(key)}`, 'McpUnknownInput');
  const wrong = wrongWithResponse(question.params.requestedSchema, response);
  if (wrong) throw ApplicationFailure.nonRetryable(wrong, 'McpBadInput');
}

function take(key: string, response: unknown): void {
  if (answered.has(key)) return;
  const { action, content } = response as Answer;
  answers.set(key, { action, content: action === 'accept' ? (content ?? {}) : {} });
  answered.add(key);
  open.delete(key);
  publish(); // in the same workflow task: when the update returns, the memo is up to date
}

/** Write the open questions, marked with the run that asks them: a next run inherits the memo. */
function publish(): void {
  const info: { runId: string; originalExecutionRunId?: string } = workflowInfo();
  const run = info.originalExecutionRunId ?? info.runId; // SDKs before 1.24 may not tell what a reset keeps
  upsertMemo({ 'mcp.input': open.size ? { run, requests: Object.fromEntries(open) } : null });
}

const ACTIONS: unknown[] = ['accept', 'decline', 'cancel'];

const TYPES: Record<string, (value: unknown) => boolean> = {
  string: (value) => typeof value === 'string',
  number: (value) => typeof value === 'number',
  integer: (value) => Number.isInteger(value),
  boolean: (value) => typeof value === 'boolean',
  array: (value) => Array.isArray(value),
};

interface Limit {
  word: string;
  of: string[]; // JSON Schema: it says nothing of values of another type
  holds: (value: any, limit: any) => boolean;
  text: string;
}

const NUMBERS = ['number', 'integer'];
const LIMITS: Limit[] = [
  { word: 'enum', of: Object.keys(TYPES), holds: (value, limit) => isIn(limit, value), text: 'must be one of' },
  { word: 'minimum', of: NUMBERS, holds: (value, limit) => value >= limit, text: 'must be at least' },
  { word: 'maximum', of: NUMBERS, holds: (value, limit) => value <= limit, text: 'must be at most' },
  { word: 'minLength', of: ['string'], holds: (value, limit) => characters(value) >= limit, text: 'is shorter than' },
  { word: 'maxLength', of: ['string'], holds: (value, limit) => characters(value) <= limit, text: 'is longer than' },
  { word: 'minItems', of: ['array'], holds: (value, limit) => value.length >= limit, text: 'has fewer items than' },
  { word: 'maxItems', of: ['array'], holds: (value, limit) => value.length <= limit, text: 'has more items than' },
];

function wrongWithForm(form: Form): string | undefined {
  if (form?.type !== 'object') {
    return "a question needs the schema of an object: {type: 'object', properties: {...}}";
  }
  const odd = Object.entries(form.properties ?? {}).find(([, field]) => !Object.hasOwn(TYPES, field?.type));
  return odd && `property ${quote(odd[0])} of a question must have one type of ${Object.keys(TYPES).join(', ')}`;
}

function wrongWithResponse(form: Form, response: unknown): string | undefined {
  if (!isObject(response)) return 'an answer is {action, content}';
  if (!ACTIONS.includes(response.action)) return 'action must be accept, decline or cancel';
  return response.action === 'accept' ? wrongWithContent(form, response.content ?? {}) : undefined;
}

function wrongWithContent(form: Form, content: unknown): string | undefined {
  if (!isObject(content)) return 'content must be an object';
  const missing = form.required?.find((name) => !Object.hasOwn(content, name));
  if (missing !== undefined) return `property ${quote(missing)} is missing`;
  for (const [name, field] of Object.entries(form.properties ?? {})) {
    const wrong = Object.hasOwn(content, name) && wrongWithValue(field, content[name]);
    if (wrong) return `property ${quote(name)} ${wrong}`;
  }
  return undefined;
}

function wrongWithValue(field: Field, value: unknown): string | undefined {
  if (!TYPES[field.type](value)) return `must be of type ${field.type}`;
  const broken = LIMITS.find(
    ({ word, of, holds }) => word in field && of.includes(field.type) && !holds(value, field[word]),
  );
  return broken && `${broken.text} ${JSON.stringify(field[broken.word])}`;
}

/** As JSON Schema counts: code points. */
function characters(text: string): number {
  return [...text].length;
}

function isIn(allowed: unknown[], value: unknown): boolean {
  return allowed.some((each) => JSON.stringify(each) === JSON.stringify(value));
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function quote(name: unknown): string {
  return `'${name}'`;
}

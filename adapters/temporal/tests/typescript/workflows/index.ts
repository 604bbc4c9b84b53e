export * from './asks';
export * from './ship';

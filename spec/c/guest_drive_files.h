static void test_files(struct box *b) { (void)b; }
static void test_deep(struct box *b) { (void)b; }
static void test_hostile(struct box *b) { (void)b; }

#include "pawl.h"
